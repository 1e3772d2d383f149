# Firewall rules of a rank: the API port where asked, the fabric's own hosts on the fabric's interface.
{ lib }:
{
  interface,
  subnet,
  usesNftables,
}:
let
  iptables =
    action: "iptables -w ${action} nixos-fw -i ${interface} -s ${subnet} -p tcp -j nixos-fw-accept";
in
if usesNftables then
  {
    extraInputRules = ''
      iifname "${interface}" ip saddr ${subnet} meta l4proto tcp accept comment "glmspark fabric"
    '';
  }
else
  {
    extraCommands = ''
      ${iptables "-A"}
    '';
    extraStopCommands = ''
      ${iptables "-D"} 2>/dev/null || true
    '';
  }
