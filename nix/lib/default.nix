# Pure functions, built on lib alone. tests/nix/lib.nix has an expression and its expected value for each.
{ lib }:
{
  firewall = import ./firewall.nix { inherit lib; };
  overlay = import ./overlay.nix { inherit lib; };
  poetry = import ./poetry.nix { inherit lib; };
  relations = import ./relations.nix { inherit lib; };
  unit = import ./unit.nix { inherit lib; };
  wheels = import ./wheels.nix { inherit lib; };
}
