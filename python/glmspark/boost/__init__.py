"""Building what a profile asks for: dense EXL3 tensors and a quantized drafter.

``layers`` and ``names`` decide, ``ranges`` reads byte ranges of a public file,
``work`` keeps what has arrived, ``quantizing`` runs the engine's quantizer, ``publish``
makes manifests and views of it, ``build`` does all of it in order.
"""
