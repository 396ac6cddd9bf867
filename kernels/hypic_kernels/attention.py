"""Attention of active rows over keys read where they lie: the cached interiors' and the sequences' own.

An interior's keys were rotated at its local positions. Placed at offset p they should be turned by p; turning the
query by -p gives the same product, so K and V are read in place, by every request that uses the interior. As each
interior wants another turn of the same query, work is cut into pieces (some rows, one stretch of keys: AttentionPlan).
One kernel gives, for each row and head of a piece, the softmax average of V over that stretch and the log of its sum of
weights; a second one averages a row's pieces with those sums.

Heads that share keys are laid side by side with the rows in the left operand of both products: place m of a piece and
key head h is row ``m // G`` of its rows and head ``h * G + m % G``, where G = Hq / H.

Logarithms are to base 2 throughout, since the hardware has exp2.
Source: online softmax and split keys as in FlashAttention 2 (arXiv 2307.08691) and Flash-Decoding; turning as in
HYPIC (arXiv 2607.01299). Oracle: attention_reference.py.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from hypic_kernels.plan import AttentionPlan

LOG2_E = tl.constexpr(1.4426950408889634)


def store_kv(k: Tensor, v: Tensor, kv_at: Tensor, K: Tensor, V: Tensor) -> None:
    """Write the pass's own keys and values into the pools: ``K[kv_at[i]] = k[i]``, likewise V.

    k: (N, H, D), v: (N, H, Dv), of any strides with 1 in the last place. kv_at: (N,) int32, token slots, no two rows
    the same; a row of -1 is not written. K: (n_tokens, H, D), V: (n_tokens, H, Dv), changed in place.
    """
    N, H, D = k.shape
    Dv = v.shape[2]
    assert v.shape[:2] == (N, H) and K.shape[1:] == (H, D) and V.shape[1:] == (H, Dv) and kv_at.shape == (N,)
    assert k.stride(2) == v.stride(2) == K.stride(2) == V.stride(2) == 1
    places = (*k.stride()[:2], *v.stride()[:2], *K.stride()[:2], *V.stride()[:2])
    width = triton.next_power_of_2(H * max(D, Dv))
    _store_kernel[(N,)](k, v, kv_at, K, V, *places, H, D, Dv, width, num_warps=4)


def spliced_attention(
    q: Tensor,
    K: Tensor,
    V: Tensor,
    plan: AttentionPlan,
    cos: Tensor,
    sin: Tensor,
    partner: Tensor,
    scale: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    *,
    n_partial_rows: int,
    max_rows: int,
    blocks: tuple[int, int, int, int] | None = None,
) -> Tensor:
    """Attend from every row to the keys of the plan's pieces that contain it.

    q: (N, Hq, D), rotated at the rows' global positions, of any strides with 1 in the last place. K: (n_tokens, H, D)
    and V: (n_tokens, H, Dv), the layer's pools in the dtype of q; Hq is a multiple of H. A piece of turn t is seen
    by ``q * cos[t] + q[..., partner] * sin[t]``, in float32 and rounded back to q's dtype; cos, sin: (n_turns, D)
    float32, partner: (D,) int32. Scores are ``q' k * scale``, with ``softcap`` c then ``c * tanh(score / c)``.
    sinks: (Hq,), a logit a head that takes weight and gives nothing.

    n_partial_rows: rows of all pieces together at most; max_rows: rows of one piece at most (rows beyond would be left
    out, so AttentionBucket checks both). blocks: (BLOCK_M, BLOCK_N, num_warps, num_stages) instead of our choice.

    Returns (N, Hq, Dv) in q's dtype; a row of no piece is zero.
    Cost: 2*Hq*(D + Dv) FLOP a pair of row and key; 8*Hq*Dv bytes to write and read each partial row.
    """
    N, Hq, D = q.shape
    H, Dv = V.shape[1:]
    P = plan.q_start.shape[0]
    assert Hq % H == 0 and K.shape[1:] == (H, D) and K.dtype == V.dtype == q.dtype
    assert q.stride(2) == K.stride(2) == V.stride(2) == 1 and scale > 0
    assert cos.shape == sin.shape and cos.shape[1:] == partner.shape == (D,)
    assert cos.is_contiguous() and sin.is_contiguous()
    assert plan.kv_at.shape == (N,) and (sinks is None or sinks.shape == (Hq,))

    G = Hq // H
    block_d, block_dv = triton.next_power_of_2(D), triton.next_power_of_2(Dv)
    block_m, block_n, warps, stages = blocks or _blocks(max_rows * G, max(block_d, block_dv), q.element_size())
    assert block_m < 64 or D * q.element_size() <= Dv * 4  # queries find room where the output will stand
    partial = torch.empty((n_partial_rows, Hq, Dv), dtype=torch.float32, device=q.device)
    log_sum = torch.empty((n_partial_rows, Hq), dtype=torch.float32, device=q.device)
    result = torch.empty((N, Hq, Dv), dtype=q.dtype, device=q.device)

    _piece_kernel[(triton.cdiv(max_rows * G, block_m), H, P)](
        *(q, K, V, cos, sin, partner),
        *(plan.q_start, plan.q_end, plan.kv, plan.n, plan.turn, plan.own, plan.out, plan.row_own),
        *(partial, log_sum, float(scale), float(softcap or 0.0)),
        *(*q.stride()[:2], *K.stride()[:2], *V.stride()[:2]),
        *(G, Hq, D, Dv, block_m, block_n, block_d, block_dv),
        SOFTCAP=softcap is not None,
        num_warps=warps,
        num_stages=stages,
    )
    # Few rows: more programs a row, each with more pieces at once. Many rows: whole rows, one load each.
    width, n_pieces = (block_dv, 32) if N >= 64 else (min(block_dv, 64), 64)
    _combine_kernel[(N, Hq, triton.cdiv(Dv, width))](
        *(partial, log_sum, sinks if sinks is not None else log_sum, result),
        *(plan.q_start, plan.q_end, plan.out, plan.row_first, plan.row_last),
        *(Hq, Dv, n_pieces, width),
        SINKS=sinks is not None,
        num_warps=4,
    )
    return result


def _blocks(places: int, width: int, itemsize: int) -> tuple[int, int, int, int]:
    """Choose (BLOCK_M, BLOCK_N, num_warps, num_stages) for pieces of at most ``places`` rows times heads a key head.

    Shared memory holds BLOCK_M queries and num_stages times BLOCK_N keys and values, of 227 KB a multiprocessor.
    Registers hold BLOCK_M x width float32 sums: 128 x 256 of them are 128 registers a thread of 8 warps.
    """
    block_m = min(max(triton.next_power_of_2(places), 16), 128 if itemsize == 2 else 32)
    if itemsize == 4:  # float32: three TF32 products for one, and twice the bytes
        return block_m, 16 if width > 128 else 32, 4, 2
    if block_m <= 32:  # decoding: reading keys decides; two programs a multiprocessor, each two blocks ahead
        return block_m, 32 if width > 128 else 64, 4, 3
    if block_m == 64:  # two programs a multiprocessor
        return block_m, 32 if width > 128 else 64, 4, 2
    return block_m, 64, 8, 2 if width > 128 else 3


@triton.jit
def _store_kernel(
    k, v, kv_at, K, V,
    k_row, k_head, v_row, v_head, K_row, K_head, V_row, V_head,
    H: tl.constexpr, D: tl.constexpr, Dv: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64)
    slot = tl.load(kv_at + i).to(tl.int64)
    if slot < 0:
        return
    at = tl.arange(0, WIDTH)
    h, d = at // D, at % D
    key = tl.load(k + i * k_row + h * k_head + d, mask=at < H * D)
    tl.store(K + slot * K_row + h * K_head + d, key, mask=at < H * D)
    h, d = at // Dv, at % Dv
    value = tl.load(v + i * v_row + h * v_head + d, mask=at < H * Dv)
    tl.store(V + slot * V_row + h * V_head + d, value, mask=at < H * Dv)


@triton.jit
def _piece_kernel(
    q, K, V, cos, sin, partner,
    q_start, q_end, kv, n, turn, own, out, row_own,
    partial, log_sum, scale, softcap,
    q_row, q_head, K_row, K_head, V_row, V_head,
    G: tl.constexpr, Hq: tl.constexpr, D: tl.constexpr, Dv: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    SOFTCAP: tl.constexpr,
):  # fmt: skip
    h, p = tl.program_id(1), tl.program_id(2)
    first = tl.load(q_start + p)
    places = (tl.load(q_end + p) - first) * G
    begin = tl.program_id(0) * BLOCK_M
    if begin >= places:
        return
    slot = tl.load(kv + p).to(tl.int64)
    n_keys = tl.load(n + p)
    turned = tl.load(turn + p)
    first_key = tl.load(own + p)

    m = begin + tl.arange(0, BLOCK_M)
    real = m < places
    row, head = first + m // G, h * G + m % G
    d, dv = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)

    q_at = q + row.to(tl.int64) * q_row + head * q_head
    q_real = real[:, None] & (d < D)[None, :]
    Q = tl.load(q_at[:, None] + d[None, :], mask=q_real, other=0.0)  # (BLOCK_M, D)
    if turned >= 0:
        other_d = tl.load(partner + d, mask=d < D, other=0)
        c = tl.load(cos + turned * D + d, mask=d < D, other=0.0)
        s = tl.load(sin + turned * D + d, mask=d < D, other=0.0)
        other_q = tl.load(q_at[:, None] + other_d[None, :], mask=q_real, other=0.0)
        Q = (Q.to(tl.float32) * c[None, :] + other_q.to(tl.float32) * s[None, :]).to(Q.dtype)
    at = (tl.load(out + p) + m // G).to(tl.int64) * Hq + head  # place in the partial outputs
    if BLOCK_M >= 64:
        # Products of 64 and more places take a computed left operand from registers, which the sums need, but a loaded
        # one from shared memory. So Q makes a round through memory, where its places' output will stand.
        room = partial.to(tl.pointer_type(Q.dtype)) + at[:, None] * (Dv * 4 // (Q.dtype.primitive_bitwidth // 8))
        tl.store(room + d[None, :], Q, mask=q_real)
        tl.debug_barrier()
        Q = tl.load(room + d[None, :], mask=q_real, other=0.0)

    # How many of the piece's keys each row sees; own + j <= row_own, for keys j = 0, 1, ...
    seen = tl.load(row_own + row, mask=real, other=0) - first_key + 1
    seen = tl.where(first_key < 0, n_keys, tl.minimum(seen, n_keys))
    seen = tl.where(real, seen, 0)

    K_at = K + slot * K_row + h * K_head
    V_at = V + slot * V_row + h * V_head
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    for start in range(0, tl.max(seen, 0), BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        # Keys behind the piece may hold anything, and 0 * NaN is NaN: they are loaded as zeros.
        key = tl.load(K_at + j[:, None] * K_row + d[None, :], mask=(j < n_keys)[:, None] & (d < D)[None, :], other=0.0)
        value = tl.load(
            V_at + j[:, None] * V_row + dv[None, :], mask=(j < n_keys)[:, None] & (dv < Dv)[None, :], other=0.0
        )
        score = tl.dot(Q, tl.trans(key), input_precision="tf32x3")  # (BLOCK_M, BLOCK_N)
        factor = scale * LOG2_E
        if SOFTCAP:  # tanh x = 2 sigmoid(2 x) - 1
            score = softcap * (2.0 * tl.sigmoid(score * (2.0 * scale / softcap)) - 1.0)
            factor = LOG2_E
        score = tl.where(j[None, :] < seen[:, None], score, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, 1) * factor)
        base = tl.where(new_top == float("-inf"), 0.0, new_top)  # a row that has seen no key yet: no inf - inf
        weight = tl.exp2(score * factor - base[:, None])
        keep = tl.exp2(top - base)
        total = total * keep + tl.sum(weight, 1)
        acc = tl.dot(weight.to(value.dtype), value, acc * keep[:, None], input_precision="tf32x3")
        top = new_top

    total = tl.where(total == 0.0, 1.0, total)  # a row that sees no key: zeros, and -inf for its log
    tl.store(log_sum + at, top + tl.log2(total), mask=real)
    tl.store(partial + at[:, None] * Dv + dv[None, :], acc / total[:, None], mask=real[:, None] & (dv < Dv)[None, :])


@triton.jit
def _combine_kernel(
    partial, log_sum, sinks, result,
    q_start, q_end, out, row_first, row_last,
    Hq: tl.constexpr, Dv: tl.constexpr, N_PIECES: tl.constexpr, WIDTH: tl.constexpr,
    SINKS: tl.constexpr,
):  # fmt: skip
    i, head = tl.program_id(0), tl.program_id(1)
    last = tl.load(row_last + i)
    dv = tl.program_id(2) * WIDTH + tl.arange(0, WIDTH)
    if SINKS:
        top = tl.load(sinks + head).to(tl.float32) * LOG2_E
        total = tl.full([], 1.0, tl.float32)
    else:
        top = tl.full([], float("-inf"), tl.float32)
        total = tl.full([], 0.0, tl.float32)
    acc = tl.zeros([WIDTH], tl.float32)
    for start in range(tl.load(row_first + i), last + 1, N_PIECES):
        p = start + tl.arange(0, N_PIECES)
        begin = tl.load(q_start + p, mask=p <= last, other=0)
        end = tl.load(q_end + p, mask=p <= last, other=0)
        at = tl.load(out + p, mask=p <= last, other=0)
        inside = (begin <= i) & (i < end)
        at = (at + i - begin).to(tl.int64) * Hq + head
        log = tl.load(log_sum + at, mask=inside, other=float("-inf"))
        some = tl.load(
            partial + at[:, None] * Dv + dv[None, :], mask=inside[:, None] & (dv < Dv)[None, :], other=0.0
        )  # (N_PIECES, WIDTH)
        new_top = tl.maximum(top, tl.max(log, 0))
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        weight = tl.exp2(log - base)
        keep = tl.exp2(top - base)
        total = total * keep + tl.sum(weight, 0)
        acc = acc * keep + tl.sum(weight[:, None] * some, 0)
        top = new_top
    acc = acc / tl.where(total == 0.0, 1.0, total)
    at = (i.to(tl.int64) * Hq + head) * Dv
    tl.store(result + at + dv, acc.to(result.dtype.element_ty), mask=dv < Dv)
