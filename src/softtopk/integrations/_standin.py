import math
import torch
def soft_topk_attention(query, key, value, topk, *, eps=1.0, normalize=None, attn_mask=None, is_causal=False, dropout_p=0.0, scale=None, enable_gqa=False, need_weights=False, hard=False):
    if enable_gqa:
        r = query.shape[-3] // key.shape[-3]
        key = key.repeat_interleave(r, -3); value = value.repeat_interleave(r, -3)
    s = (query @ key.transpose(-1, -2)) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if attn_mask is not None:
        s = s.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else s + attn_mask
    n = s.shape[-1]
    if topk < n:
        keep = torch.isfinite(s)
        few = keep.sum(-1, keepdim=True) <= topk
        tau = eps / 2
        with torch.no_grad():
            f = s.detach().double()
            lo = f.masked_fill(~keep, math.inf).amin(-1, keepdim=True) - 60 * tau; hi = f.amax(-1, keepdim=True) + 60 * tau
            for _ in range(60):
                t = (lo + hi) / 2
                big = torch.sigmoid((f - t) / tau).sum(-1, keepdim=True) > topk
                lo = torch.where(big, t, lo); hi = torch.where(big, hi, t)
            t = torch.nan_to_num((lo + hi) / 2).to(s.dtype)
        la = torch.nn.functional.logsigmoid((s - t) / tau)
        if hard:
            la = torch.where(torch.zeros_like(s).scatter(-1, s.topk(int(topk), -1).indices, 1.) > 0, 0., -math.inf)
        s = torch.where(few, s, s + la)
    w = torch.nan_to_num(torch.softmax(s.float(), -1)).to(query.dtype)
    o = torch.nn.functional.dropout(w, dropout_p) @ value
    return (o, w) if need_weights else o
