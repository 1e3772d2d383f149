"""Each piece of the CPU reference against a formula in float64, element by element."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

torch = pytest.importorskip("torch", reason="needs torch (make check installs it)")

from tests.overlay.glm5next.glm5next_cpu import kda, latent, pooling  # noqa: E402

Array = npt.NDArray[np.float64]
# float32 sums of at most 128 terms of size one, and tens of steps of a recurrence.
CLOSE = 2e-5
# bf16 keeps 8 bits: half a step is at most this share of a value.
BF16 = 2.0**-8


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def tensor(array: Array) -> torch.Tensor:
    return torch.from_numpy(array).float()


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def naive_decay(raw: Array, a_log: Array, bias: Array, bound: float) -> Array:
    out = np.empty_like(raw)
    for t, h, d in np.ndindex(*raw.shape):
        rate = math.exp(a_log[h])
        at = bias[h * raw.shape[2] + d]
        out[t, h, d] = bound / (1 + math.exp(-rate * (raw[t, h, d] + at)))
    return out


def test_decay() -> None:
    raw, a_log, bias = random(5, 3, 8), random(3), random(24)
    got = kda.decay(tensor(raw), tensor(a_log).view(1, 1, 3, 1), tensor(bias), -5.0)
    np.testing.assert_allclose(got, naive_decay(raw, a_log, bias, -5.0), atol=CLOSE)
    assert float(got.max()) < 0 and float(got.min()) > -5


def naive_delta_rule(parts: list[Array], state: Array) -> tuple[Array, Array]:
    """The gated delta rule by its transition matrices, one head after the other."""
    q, k, v, g, beta = parts
    outputs = np.empty_like(v)
    last = np.empty_like(state)
    for h in range(q.shape[1]):
        memory = state[h].T.copy()  # [key, value]
        for t in range(q.shape[0]):
            key = k[t, h] / math.sqrt((k[t, h] ** 2).sum() + 1e-6)
            query = q[t, h] / math.sqrt((q[t, h] ** 2).sum() + 1e-6)
            erase = np.eye(len(key)) - beta[t, h] * np.outer(key, key)
            decayed = np.diag(np.exp(g[t, h])) @ memory
            memory = erase @ decayed + beta[t, h] * np.outer(key, v[t, h])
            outputs[t, h] = memory.T @ query / math.sqrt(len(query))
        last[h] = memory.T
    return outputs, last


@pytest.fixture
def sequence() -> list[Array]:
    tokens, heads, width = 40, 2, 16
    q, k, v = (random(tokens, heads, width, seed=s) for s in (1, 2, 3))
    g = -5 * sigmoid(random(tokens, heads, width, seed=4) - 2)
    return [q, k, v, g, sigmoid(random(tokens, heads, seed=5))]


def recur(parts: list[Array], state: Array) -> tuple[Array, Array]:
    q, k, v, g, beta = map(tensor, parts)
    out, last = kda.recur(q, k, v, g=g, beta=beta, state=tensor(state))
    return out.double().numpy(), last.double().numpy()


def test_recurrence(sequence: list[Array]) -> None:
    state = random(2, 16, 16, seed=6)
    got, want = recur(sequence, state), naive_delta_rule(sequence, state)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, atol=CLOSE)


def test_recurrence_goes_on_where_it_stopped(sequence: list[Array]) -> None:
    """A prompt in two chunks, or a prompt and decoding, is one sequence."""
    state = np.zeros((2, 16, 16))
    whole, last = recur(sequence, state)
    first, middle = recur([part[:13] for part in sequence], state)
    second, end = recur([part[13:] for part in sequence], middle)
    np.testing.assert_allclose(np.concatenate((first, second)), whole, atol=CLOSE)
    np.testing.assert_allclose(end, last, atol=CLOSE)


def hadamard(width: int) -> Array:
    """Entry (i, j) is -1 to the number of bits that i and j share."""
    return np.array(
        [[(-1.0) ** (i & j).bit_count() for j in range(width)] for i in range(width)]
    )


def test_rotation() -> None:
    x = random(3, 128)
    want = tensor(x).double().numpy() @ hadamard(128) / math.sqrt(128)
    got = pooling.rotate(tensor(x)).double().numpy()
    np.testing.assert_allclose(got, want, atol=BF16 * np.abs(want).max() + CLOSE)


def fp8_values() -> Array:
    """Every finite value of e4m3: 4 exponent bits with bias 7, 3 mantissa bits."""
    values = [m / 8 * 2.0**-6 for m in range(8)]
    values += [(1 + m / 8) * 2.0 ** (e - 7) for e in range(1, 16) for m in range(8)]
    magnitudes = np.array(values[:-1])  # the last code is NaN
    return np.concatenate((-magnitudes[::-1], magnitudes))


def test_quantization_keeps_the_nearest_fp8_value() -> None:
    x = random(4, 128) * np.array([[1e-6], [0.3], [7.0], [900.0]])
    kept, scale = pooling.quantize(tensor(x))
    grid = fp8_values()
    for row in range(4):
        most = max(np.abs(np.float32(x[row])).max(), 1e-4)
        power = 2.0 ** math.ceil(math.log2(most / 448))
        assert float(scale[row]) == power
        wide = np.float32(x[row]).astype(np.float64) / power
        nearest = np.abs(wide[:, None] - grid).min(1)
        got = kept[row].double().numpy()
        np.testing.assert_allclose(np.abs(got - wide), nearest, atol=1e-9)


def test_pool_key() -> None:
    keys, gates, ape = (random(4, 128, seed=s) for s in (1, 2, 3))
    want = np.empty(128)
    for d in range(128):
        weights = [math.exp(gates[n, d] + ape[n, d]) for n in range(4)]
        terms = zip(weights, keys[:, d], strict=True)
        want[d] = sum(w * key for w, key in terms) / sum(weights)
    got = pooling.pool_key(tensor(keys), tensor(gates), tensor(ape)).double().numpy()
    np.testing.assert_allclose(got, want, atol=BF16 * np.abs(want).max() + CLOSE)


def test_scores() -> None:
    query, scale = pooling.quantize(tensor(random(6, 128, seed=1)))
    keys, scales = pooling.quantize(tensor(random(9, 128, seed=2)))
    weights = random(6, seed=3)
    folded = tensor(weights) * scale[:, 0]  # vLLM folds the query's scale in
    got = pooling.scores(query, folded, keys, scales)
    q = query.double().numpy() * scale.double().numpy()
    k = keys.double().numpy() * scales.double().numpy()
    want = [
        sum(weights[h] * max(0.0, float(q[h] @ k[p])) for h in range(6))
        for p in range(9)
    ]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)


def naive_tokens(found: Array, length: int, pool: int, budget: int) -> set[int]:
    """Tokens by the rule in words: the best pools whole, and those in no whole pool."""
    whole = list(range(length // pool))
    best = sorted(whole, key=lambda p: -found[p])[: budget // pool]
    return {t for t in range(length) if t // pool in best or t // pool not in whole}


@pytest.mark.parametrize("length", [1, 3, 4, 15, 16, 17, 19, 20, 21, 40, 63])
def test_selection(length: int) -> None:
    found = random(16, seed=length)
    got = pooling.selected_tokens(tensor(found), length, 4, 16).tolist()
    assert got == sorted(naive_tokens(found, length, 4, 16))
    assert len(got) == (length if length < 20 else 16 + length % 4)


def test_attention_over_chosen_rows() -> None:
    query, rows = random(3, 32, seed=1), random(7, 32, seed=2)
    want = np.empty((3, 32))
    for h in range(3):
        weights = [math.exp(0.2 * float(query[h] @ row)) for row in rows]
        terms = zip(weights, rows, strict=True)
        want[h] = sum(w * row for w, row in terms) / sum(weights)
    got = latent.attend(tensor(query), tensor(rows), 0.2)
    np.testing.assert_allclose(got, want, atol=CLOSE)


def test_rms_norm() -> None:
    x, weight = random(3, 32, seed=1), random(32, seed=2)
    want = [
        [
            x[t, d] / math.sqrt(float(x[t] @ x[t]) / 32 + 1e-5) * weight[d]
            for d in range(32)
        ]
        for t in range(3)
    ]
    got = latent.rms_norm(tensor(x), tensor(weight), 1e-5)
    np.testing.assert_allclose(got, want, atol=CLOSE)
