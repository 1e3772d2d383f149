{
  description = "GLM-5.3-Flash (EXL3) on two to four NVIDIA DGX Sparks: the tool, vLLM for GB10, the image, NixOS";

  inputs = {
    nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";
    # Both as plain trees: as flakes they would fetch inputs of their own that nothing here uses.
    poetry2nix = {
      url = "github:nix-community/poetry2nix";
      flake = false;
    };
    nixos-dgx-spark = {
      url = "github:graham33/nixos-dgx-spark";
      flake = false;
    };
  };

  outputs =
    {
      self,
      nixpkgs,
      poetry2nix,
      nixos-dgx-spark,
    }:
    let
      inherit (nixpkgs) lib;
      systems = [
        "aarch64-linux"
        "x86_64-linux"
      ];
      pkgsFor =
        system:
        import nixpkgs {
          inherit system;
          config = import ./nix/config.nix { inherit lib; };
          overlays = [ self.overlays.default ];
        };
      eachSystem = f: lib.genAttrs systems (system: f (pkgsFor system));
      hosts = import ./hosts {
        inherit lib nixos-dgx-spark;
        inherit (self) nixosModules;
        inherit (nixpkgs.lib) nixosSystem;
      };
    in
    {
      overlays.default = import ./nix/overlay.nix {
        inherit poetry2nix;
        revision = self.rev or self.dirtyRev or "unknown";
      };

      packages = eachSystem (pkgs: import ./nix/packages.nix { inherit pkgs; });

      apps = eachSystem (pkgs: import ./nix/apps.nix { inherit pkgs; });

      checks = eachSystem (
        pkgs:
        import ./nix/checks {
          inherit pkgs self;
        }
      );

      # not built by `nix flake check`: gigabytes of wheels, minutes of nvcc
      legacyPackages = eachSystem (pkgs: {
        full-checks = import ./nix/checks/full.nix { inherit pkgs; };
      });

      devShells = eachSystem (pkgs: {
        default = import ./nix/shell.nix { inherit pkgs; };
      });

      formatter = eachSystem (pkgs: pkgs.callPackage ./nix/formatter.nix { });

      lib = {
        inherit (hosts) mkSpark;
      };

      nixosModules.default = {
        imports = [ ./nix/modules/glmspark.nix ];
        nixpkgs.overlays = [ self.overlays.default ];
      };

      nixosConfigurations = hosts.configurations;

      templates.kit = {
        path = ./nix/templates/kit;
        description = "A kit of your own: its kit.toml, and NixOS hosts where the Sparks run NixOS";
      };
      templates.default = self.templates.kit;
    };
}
