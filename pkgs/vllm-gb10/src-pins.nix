# What vLLM 0.32.0's CMake fetches while it configures, each with the commit that the sdist names. A hash that nobody
# has published yet is null: src.nix then says which command prints it.
{
  cutlass = {
    owner = "NVIDIA";
    repo = "cutlass";
    rev = "cb4247394dd82148787aed73e5dc7cef33cbf862"; # v4.7.1
    variable = "VLLM_CUTLASS_SRC_DIR";
    hash = null;
  };
  deepgemm = {
    owner = "vllm-project";
    repo = "DeepGEMM";
    rev = "1e1842a833699298f7afc02eefb2ed168fff6938";
    variable = "DEEPGEMM_SRC_DIR";
    fetchSubmodules = true;
    hash = null;
  };
  deepselect = {
    owner = "vllm-project";
    repo = "DeepSelect";
    rev = "d96d33afe1fab0d6066da49cdc91e64c2bee65ea";
    variable = "DEEPSELECT_SRC_DIR";
    fetchSubmodules = true;
    hash = null;
  };
  flash-attention = {
    owner = "vllm-project";
    repo = "flash-attention";
    rev = "9cd61de38763d712bb6ce56e2a02cc2bf718c89f";
    variable = "VLLM_FLASH_ATTN_SRC_DIR";
    fetchSubmodules = true;
    hash = null;
  };
  flashkda = {
    owner = "vllm-project";
    repo = "FlashKDA";
    rev = "17a037d98da546deb4591e967cf961a43c034d8b";
    variable = "FLASH_KDA_SRC_DIR";
    fetchSubmodules = true;
    hash = null;
  };
  flashmla = {
    owner = "vllm-project";
    repo = "FlashMLA";
    rev = "0eee43b12f034b657133cf2afca6a72ebb6efccf";
    variable = "FLASH_MLA_SRC_DIR";
    fetchSubmodules = true;
    hash = null;
  };
  fmha-sm100 = {
    owner = "vllm-project";
    repo = "MSA";
    rev = "968061ab16cb14991a5c7d4c0e8eabf531be0dcf";
    variable = "FMHA_SM100_SRC_DIR";
    fetchSubmodules = true;
    hash = null;
  };
  qutlass = {
    owner = "IST-DASLab";
    repo = "qutlass";
    rev = "e74319e3405ce6d71965732880f5dc1f52371f64";
    variable = "QUTLASS_SRC_DIR";
    # without its CUTLASS submodule: vLLM's CMake points it at its own
    hash = "sha256-Gzl3KuYXXLXMrVciEYrBPu1FH2cplGUPTFpWzFfUmMo=";
  };
  tml-fa4 = {
    owner = "vllm-project";
    repo = "tml-fa4";
    rev = "75765e76a9c2c012c1f6ecd64577eb646eb4d303";
    variable = "TML_FA4_SRC_DIR";
    hash = null;
  };
  triton-kernels = {
    owner = "triton-lang";
    repo = "triton";
    rev = "0add68262ab0a2e33b84524346cb27cbb2787356"; # v3.5.1
    variable = "TRITON_KERNELS_SRC_DIR";
    subfolder = "/python/triton_kernels/triton_kernels";
    hash = "sha256-dyNRtS1qtU8C/iAf0Udt/1VgtKGSvng1+r2BtvT9RB4=";
  };
}
