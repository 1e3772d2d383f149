import pytest

from glmspark.serving.kv import Drafting
from glmspark.serving.model import draft_shape, model_shape, shipped_config


@pytest.fixture(scope="session")
def model():
    return model_shape(shipped_config("glm-5.3-flash"))


@pytest.fixture(scope="session")
def draft():
    return draft_shape(shipped_config("dflash2"))


@pytest.fixture
def dflash(draft):
    def make(block=None):
        return Drafting("dflash2", 7, draft, block)

    return make
