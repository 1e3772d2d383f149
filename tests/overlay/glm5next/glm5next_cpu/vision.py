"""vLLM's text model without its vision tower, which needs torchvision to import."""

import importlib.util
import sys
from types import ModuleType

NAMES = {
    "vllm.model_executor.models.glm4_1v": (
        "Glm4vDummyInputsBuilder",
        "Glm4vForConditionalGeneration",
    ),
    "vllm.models.glm5next.common.multimodal": (
        "Glm5NextMultiModalProcessor",
        "Glm5NextProcessingInfo",
        "Glm5NextVisionTransformer",
    ),
}


def stand_in():
    """Empty classes for the vision tower's, unless torchvision is there."""
    if importlib.util.find_spec("torchvision") is not None:
        return
    for module, names in NAMES.items():
        stub = sys.modules.setdefault(module, ModuleType(module))
        for name in names:
            setattr(stub, name, type(name, (), {}))
