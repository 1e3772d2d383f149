"""How ``.venv`` of a checkout is made; imports nothing but Python and our errors."""
