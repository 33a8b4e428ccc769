"""One probabilistic model of a reward-against-compute curve.

    reward = level + gain * s(C) + extra * e(C) + drift + misfit(log C) + run * s(C) + noise
"""

from dataclasses import dataclass, field

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

from scalerl.curves.new import priors as P

NUM_DRAWS = 2000
MOST = 60
NODES = (np.arange(12) + 0.5) / 12
MOST_CELLS = 500
LEVELS = 7
WIDE = 3


def sigmoid(x, log_exponent, log_midpoint):
    with np.errstate(over="ignore"):
        return 1.0 / (1.0 + np.exp(-np.exp(log_exponent) * (x - log_midpoint)))


@dataclass
class Data:
    x: np.ndarray
    y: np.ndarray
    w: np.ndarray
    index: np.ndarray
    run: np.ndarray
    sizes: np.ndarray
    scale: float
    spacing: float
    sig: float
    known: bool
    noise: float
    span: float
    start: float | None
    start_var: float
    bounds: tuple | None
    @property
    def n(self):
        return len(self.y)


def prepare(c, y, *, start=None, start_sd=None, num_samples=None, error=None, run=None, bounds=(0.0, 1.0)):
    c, y = np.asarray(c, float), np.asarray(y, float)
    run = np.zeros(len(c), int) if run is None else np.unique(np.asarray(run), return_inverse=True)[1]
    order = np.lexsort((c, run)); c, y, run = c[order], y[order], run[order]
    known = num_samples is not None or error is not None
    var = np.ones(len(c))
    if error is not None:
        var = np.broadcast_to(np.asarray(error, float), c.shape)[order] ** 2
    elif num_samples is not None:
        ns = np.broadcast_to(np.asarray(num_samples, float), c.shape)[order]
        p = np.clip((y * ns + 1) / (ns + 2), 0.005, 0.995); var = p * (1 - p) / ns
    scale = c.max()
    num_runs = run.max() + 1
    most = MOST if num_runs == 1 else max(MOST * 2 // num_runs, 8)
    xs, ys, vs, idx, rn, sz = [], [], [], [], [], []
    spacing = []
    for r in range(num_runs):
        mine = run == r
        cr, yr, vr = c[mine], y[mine], var[mine]
        n = len(cr)
        lx = np.log(cr / scale)
        spacing.append((cr[-1] - cr[0]) / max(n - 1, 1))
        if n > most:
            pos = 0.5 * np.arange(n) / n + 0.5 * (lx - lx[0]) / max(lx[-1] - lx[0], 1e-9)
            label = np.minimum((pos / pos[-1] * most).astype(int), most - 1)
        else:
            label = np.arange(n)
        starts = np.flatnonzero(np.diff(label, prepend=-1))
        prec = np.add.reduceat(1 / vr, starts)
        mean = lambda v: np.add.reduceat(v / vr, starts) / prec  # noqa
        size = np.diff(np.append(starts, n))
        xs.append(mean(lx)); ys.append(mean(yr)); vs.append(1 / prec)
        idx.append(np.add.reduceat(np.arange(n) * 1.0, starts) / size); rn.append(np.full(len(starts), r)); sz.append(size)
    x, y, v, idx, rn, sz = (np.concatenate(q) for q in (xs, ys, vs, idx, rn, sz))
    noise = v.mean() if known else 1.0 * v.mean()
    w = v / noise
    # scatter from second differences
    d2, dw = [], []
    for r in range(num_runs):
        m = rn == r; yy, ww, xx = y[m], w[m], np.exp(x[m])
        if len(yy) > 2:
            # departure from the line through its neighbours
            f = (xx[1:-1] - xx[:-2]) / np.maximum(xx[2:] - xx[:-2], 1e-12)
            d2.append(yy[1:-1] - (1 - f) * yy[:-2] - f * yy[2:]); dw.append(ww[1:-1] + (1 - f) ** 2 * ww[:-2] + f**2 * ww[2:])
    z = np.concatenate(d2) / np.sqrt(np.concatenate(dw)) if d2 else np.array([1e-3])
    full = np.ptp(np.append(y, start) if start is not None else y)
    sig = max(np.sqrt(np.mean(z**2)), 1e-3 * full, 1e-9)
    if known:
        sig = np.sqrt(noise)
    span = max(full - 2 * sig * np.sqrt(np.median(w)), 4 * sig * np.sqrt(np.median(w)))
    sv = np.median(w) if start_sd is None else max(start_sd / sig, 0.02) ** 2
    return Data(x, y, w, idx, rn, sz, scale, float(np.median(spacing)), sig, known, noise, span, start, sv, bounds)


@dataclass
class Cov:
    drift: float
    length: float
    misfit: float
    spread: float
    log_weight: float
    inverse: np.ndarray = field(default=None, repr=False)  # of the Cholesky factor


def matern(d):
    d = np.sqrt(3) * d / P.MISFIT_LENGTH
    return (1 + d) * np.exp(-d)


def covariance(D, cov, i1, r1, x1, t1, i2, r2, x2, t2, s1, s2):
    """drift and misfit between two sets of places, in units of sigma^2"""
    same = np.equal.outer(r1, r2)
    out = np.zeros((len(x1), len(x2)))
    if cov.drift:
        size = np.median(D.sizes); l = cov.length * size
        # the mean over a block of a process with that length
        shrink = 1.0
        out += cov.drift * shrink * same * np.exp(-np.abs(np.subtract.outer(i1, i2)) / l)
    if cov.misfit:
        out += (cov.misfit * D.span / D.sig) ** 2 * matern(np.abs(np.subtract.outer(x1, x2)))
    if cov.spread:
        out += (cov.spread * D.span / D.sig) ** 2 * same * np.multiply.outer(t1, t2)
    return out


def covariances(D, reach):
    spreads = P.RUN_SPREADS if D.run.max() > 0 else [(0.0, 1.0)]
    out = []
    for a, l, wd in P.DRIFTS:
        for k, wm in P.MISFITS:
            for r, wr in spreads:
                cov = Cov(a, l, k, r, np.log(wd * wm * wr))
                R = np.diag(D.w) + covariance(D, cov, D.index, D.run, D.x, reach, D.index, D.run, D.x, reach, D.sizes, D.sizes)
                if D.start is not None:
                    R = np.pad(R, ((0, 1), (0, 1))); R[-1, -1] = D.start_var
                L = np.linalg.cholesky(R)
                cov.inverse = np.linalg.inv(L)
                cov.log_weight += -np.log(np.diag(L)).sum()
                out.append(cov)
    return out



FLAT, RISE, SECOND, TAIL, LATE, FALL = range(6)
NAMES = ("flat", "rise", "second", "tail", "late", "fall")
BEAM = 16


@dataclass
class Cells:
    """Candidate curves: hypothesis, exponent, midpoint, place of the second part, and the volume of prior each stands for."""

    hyp: np.ndarray
    b: np.ndarray
    m: np.ndarray
    p: np.ndarray
    length: np.ndarray
    db: np.ndarray
    dm: np.ndarray
    dp: np.ndarray
    lw: np.ndarray  # log of the prior weight of the hypothesis and its discrete choices

    def take(self, mask):
        return Cells(*(getattr(self, k)[mask] for k in self.__dataclass_fields__))

    @staticmethod
    def join(many):
        return Cells(*(np.concatenate([getattr(c, k) for c in many]) for k in Cells.__dataclass_fields__))


def branches(D):
    """Every hypothesis with its discrete places: one candidate each, its exponent and midpoint still open."""
    x, comp = D.x, np.sort(np.exp(D.x))
    rows = [(FLAT, 0.0, 1.0, 0.0), (RISE, 0.0, 1.0, 0.0)]
    rows += [(SECOND, p, 1.0, -np.log(len(P.SECOND_PLACES))) for p in P.SECOND_PLACES]
    rows += [(TAIL, p, 1.0, -np.log(len(P.TAIL_PLACES))) for p in P.TAIL_PLACES]
    rows += [(LATE, p, 1.0, -np.log(len(P.LATE_PLACES))) for p in P.LATE_PLACES]
    between = 0.5 * (comp[1:] + comp[:-1])[2:-2]
    for length in P.FALL_LENGTHS:
        gaps = between if length < 0.2 else np.unique(np.quantile(between, np.linspace(0, 1, 8))) if len(between) else between
        if len(gaps) > 60:
            gaps = gaps[np.linspace(0, len(gaps) - 1, 60).astype(int)]
        rows += [(FALL, p, length, -np.log(len(gaps) * len(P.FALL_LENGTHS))) for p in gaps]
    hyp, p, length, lw = (np.array(v) for v in zip(*rows))
    lw = lw + np.log([P.HYPOTHESES[NAMES[h]] for h in hyp])
    one = np.ones(len(hyp))
    return Cells(hyp, one, one, p, length, one, one, one, lw)


def spread_out(c, b, m, volume):
    """Cells of one branch each at several (b, m)."""
    rep = lambda v: np.repeat(v, b.shape[1])  # noqa
    return Cells(rep(c.hyp), b.ravel(), m.ravel(), rep(c.p), rep(c.length), volume.ravel(), np.ones(b.size), np.ones(b.size), rep(c.lw))


def search(D, cov, c, low):
    """The best exponent and midpoint of every branch under one covariance, by Gauss-Newton from the best of a few, and
    the covariance of the two."""
    k = len(c.hyp)
    b0, m0 = np.meshgrid(np.linspace(np.log(0.7), np.log(6), 4), np.linspace(max(low, -5.0), 2.0, 7), indexing="ij")
    b, m = np.broadcast_to(b0.ravel(), (k, 28)), np.broadcast_to(m0.ravel(), (k, 28))
    cells = spread_out(c, b, m, np.ones(b.shape))
    first = masses(D, [cov], cells, *columns(D, cells), quick=True).lm[0, 0].reshape(k, -1).argmax(1)
    b, m = b[np.arange(k), first], m[np.arange(k), first]
    has = D.start is not None
    ya = np.append(D.y, D.start) if has else D.y
    centre = D.start if has else D.y[0]
    pad = (lambda v: np.concatenate([v, np.zeros((1, v.shape[1]))])) if has else (lambda v: v)
    y = cov.inverse @ (ya - centre); one = cov.inverse @ np.ones(len(ya))
    extra_sd = EXTRA_SD(c.hyp) * D.span
    p0 = (D.sig / (max((2.0 if has else 0.5) * D.span, 1e-9))) ** 2
    s2 = np.full(k, D.sig**2)
    (bm, bs), (mm, ms) = P.LOG_EXPONENT, P.LOG_MIDPOINT
    gain = np.full(k, 0.3 * D.span)
    best = np.full(k, -np.inf); keep = [b, m, None]
    for step in range(7):
        cc = Cells(c.hyp, b, m, c.p, c.length, c.db, c.dm, c.dp, c.lw)
        s, e = columns(D, cc)
        x = position(D.x[:, None], c.hyp, c.p)
        slope = np.exp(b) * s * (1 - s)
        cols = [s, e, slope * (x - m), -slope]
        W = np.stack([np.broadcast_to(one[:, None], (len(one), k))] + [cov.inverse @ pad(v) for v in cols], axis=2)  # n, k, 5
        # at the current gain: first solve the linear part, then one step of the shape
        prior = np.stack([np.full(k, p0), s2 / (D.room**2), s2 / extra_sd**2], axis=1)
        L = W[:, :, :3]; G = np.einsum("nki,nkj->kij", L, L) + prior[:, :, None] * np.eye(3) + 1e-12 * np.eye(3)
        lin = np.linalg.solve(G, np.einsum("nki,n->ki", L, y)[:, :, None])[:, :, 0]
        gain = np.clip(lin[:, 1], least_gain(D), D.room)
        V = W.copy(); V[:, :, 3:] *= gain[None, :, None]
        res = y[:, None] - np.einsum("nki,ki->nk", L, np.stack([lin[:, 0], gain, lin[:, 2]], axis=1))
        s2 = np.maximum((np.einsum("nk,nk->k", res, res) + D.sig**2) / (len(y) + 1), 1e-18)
        prior = np.stack([np.full(k, p0), s2 / D.room**2, s2 / extra_sd**2, s2 / bs**2, s2 / ms**2], axis=1)
        G = np.einsum("nki,nkj->kij", V, V) + prior[:, :, None] * np.eye(5)
        pull = np.stack([-p0 * lin[:, 0], -s2 / D.room**2 * gain, -s2 / extra_sd**2 * lin[:, 2], s2 * (bm - b) / bs**2, s2 * (mm - m) / ms**2], axis=1)
        inv = np.linalg.inv(G)
        cov2 = inv[:, 3:, 3:] * s2[:, None, None]
        value = -0.5 * len(y) * np.log(s2) - 0.5 * ((b - bm) / bs) ** 2 - 0.5 * ((m - mm) / ms) ** 2
        better = value > best
        best = np.where(better, value, best)
        keep = [np.where(better, b, keep[0]), np.where(better, m, keep[1]), cov2 if keep[2] is None else np.where(better[:, None, None], cov2, keep[2])]
        move = np.einsum("kij,kj->ki", inv, np.einsum("nki,nk->ki", V, res) + pull)
        b = np.clip(b + np.clip(move[:, 3], -0.5, 0.5), *P.EXPONENTS); m = np.clip(m + np.clip(move[:, 4], -0.9, 0.9), low - 1, P.MIDPOINTS[1])
    return keep


def around(c, b, m, cov2, num, reach):
    """A grid of cells about the best of each branch, along the axes of its covariance."""
    L = np.linalg.cholesky(cov2 + 1e-12 * np.eye(2))
    u = (np.arange(num) + 0.5) / num * 2 * reach - reach
    U, V = (v.ravel() for v in np.meshgrid(u, u, indexing="ij"))
    bb = b[:, None] + L[:, 0, 0, None] * U
    mm = m[:, None] + L[:, 1, 0, None] * U + L[:, 1, 1, None] * V
    volume = np.broadcast_to((L[:, 0, 0] * L[:, 1, 1] * (2 * reach / num) ** 2)[:, None], bb.shape)
    return spread_out(c, bb, mm, volume)


def position(x, hyp, p):
    c = np.exp(x)
    late = hyp == LATE
    y = np.where(hyp == FALL, np.minimum(x, np.log(np.where(hyp == FALL, np.maximum(p, 1e-9), 1.0))), x)
    return np.where(late, np.log(np.maximum(c - np.exp(np.where(late, p, 0.0)), 1e-9)), y)


def EXTRA_SD(hyp):
    return np.array([1e-6, 1e-6, P.SECOND_SD, P.TAIL_SD, 1e-6, P.FALL_SD])[hyp]


def shape_of(x, hyp, b, m, p):
    """The main rise, broadcasting."""
    return np.where(hyp == FLAT, 0.0, sigmoid(position(x, hyp, p), b, m))


def extra_of(x, hyp, p, length):
    down = -decline(x, np.where(hyp == FALL, p, 0.5), length)
    rise = sigmoid(x, np.where(hyp == TAIL, P.TAIL_EXPONENT, P.SECOND_EXPONENT), p)
    return np.where((hyp == SECOND) | (hyp == TAIL), rise, np.where(hyp == FALL, down, 0.0))


def decline(x, p, length):
    """How much of a fall has happened: 0 at its place, towards 1 after it."""
    with np.errstate(over="ignore"):
        return -np.expm1(-np.maximum(np.exp(x) - p, 0) / np.maximum(length * (1 - p), 1e-9))


def log_prior(c):
    bm, bs = P.LOG_EXPONENT; mm, ms = P.LOG_MIDPOINT
    lp = -0.5 * ((c.b - bm) / bs) ** 2 - 0.5 * ((c.m - mm) / ms) ** 2 - np.log(2 * np.pi * bs * ms)
    return c.lw + np.where(c.hyp == FLAT, 0.0, lp + np.log(np.maximum(c.db * c.dm, 1e-300)))


@dataclass
class Mass:
    lm: np.ndarray  # covariance x node x cell
    g: np.ndarray
    q: np.ndarray
    h: np.ndarray
    parts: dict


def masses(D, covs, cells, S, E, quick=False):
    has = D.start is not None
    ya = np.append(D.y, D.start) if has else D.y
    centre = D.start if has else D.y[0]
    level_sd = max((2.0 if has else 0.5) * D.span, 1e-9)
    p0 = (D.sig / level_sd) ** 2
    extra_sd = EXTRA_SD(cells.hyp) * D.span
    pe = (D.sig / extra_sd) ** 2
    nu = P.KNOWN_NOISE_DF if D.known else P.NOISE_DF
    s0 = nu * D.sig**2
    df = D.n + nu
    if has:
        S = np.concatenate([S, np.zeros((1, S.shape[1]))]); E = np.concatenate([E, np.zeros((1, E.shape[1]))])
    with_extra = (cells.hyp == SECOND) | (cells.hyp == TAIL) | (cells.hyp == FALL)
    flat = cells.hyp == FLAT
    ei = np.flatnonzero(with_extra)
    Z = np.concatenate([np.ones((len(ya), 1)), (ya - centre)[:, None], S, E[:, ei]], axis=1)
    lp = log_prior(cells)
    k, n_c = len(covs), len(cells.hyp)
    room, least = np.where(cells.hyp == LATE, D.late_room, D.room), least_gain(D)
    num = 1 if quick else len(NODES)
    out = Mass(np.empty((k, num, n_c)), np.empty((k, num, n_c)), np.empty((k, num, n_c)), np.empty((k, n_c)), {})
    parts = {name: np.zeros((k, n_c)) for name in ("a", "b0", "s1", "e1", "ee", "ey", "se")}
    for i, cov in enumerate(covs):
        W = cov.inverse @ Z
        one, y, Sw, Ew = W[:, 0], W[:, 1], W[:, 2:2 + n_c], W[:, 2 + n_c:]
        a = one @ one + p0; b0 = one @ y
        s1, sy = one @ Sw, y @ Sw
        ss = np.einsum("ij,ij->j", Sw, Sw) - s1**2 / a; sy = sy - s1 * b0 / a
        yy = y @ y - b0**2 / a
        base = cov.log_weight + 0.5 * np.log(p0 / a) + lp
        h, gy, q0 = ss.copy(), sy.copy(), np.full(n_c, yy)
        ee = np.ones(n_c); ey = np.zeros(n_c); se = np.zeros(n_c); e1 = np.zeros(n_c)
        if len(ei):
            e1_ = one @ Ew
            ee[ei] = np.einsum("ij,ij->j", Ew, Ew) - e1_**2 / a + pe[ei]
            ey[ei] = y @ Ew - e1_ * b0 / a; e1[ei] = e1_
            se[ei] = np.einsum("ij,ij->j", Sw[:, ei], Ew) - s1[ei] * e1_ / a
            h -= se**2 / ee; gy -= se * ey / ee; q0 -= ey**2 / ee
            base = base + np.where(with_extra, 0.5 * np.log(pe / ee) + np.log(2), 0.0)
        h = np.maximum(h, 1e-12 * np.maximum(a, 1))
        ghat = gy / h; Q = np.maximum(q0 - gy * ghat, 0) + s0
        Qf = np.maximum(q0, 0) + s0
        sd = np.sqrt(Q / df / h)
        beyond = np.maximum(np.maximum(least - ghat, ghat - room), 0) / sd
        reach = sd * 11.0 / (beyond + np.sqrt(beyond**2 + 4.0)); mid = np.clip(ghat, least, room)
        low, high = np.maximum(mid - reach, least), np.minimum(mid + reach, room)
        # nodes even in log gain where the range is wide
        if quick:
            g = mid[None]; q = np.where(flat, Qf, Q + h * (g - ghat) ** 2)
            lm = base - 0.5 * df * np.log(q) + np.where(flat, 0.0, np.where(cells.hyp == LATE, log_gain_late(g, D), log_gain(g, D)) + np.log(np.minimum(2.5 * sd, room)))
            if len(ei):
                mean = (ey[ei] - g[:, ei] * se[ei]) / ee[ei]
                lm[:, ei] += log_ndtr(mean / np.sqrt(q[:, ei] / df / ee[ei]))
            out.lm[i] = lm
            continue
        g = low * (high / low) ** NODES[:, None]
        q = np.where(flat, Qf, Q + h * (g - ghat) ** 2)
        lm = base - 0.5 * df * np.log(q) + np.where(cells.hyp == LATE, log_gain_late(g, D), log_gain(g, D)) + np.log(g) + np.log(np.maximum(np.log(high / low), 1e-12) / len(NODES))
        g = np.where(flat, 0.0, g)
        lm = np.where(flat, base - 0.5 * df * np.log(Qf) - np.log(len(NODES)), lm)
        if len(ei):
            mean = (ey[ei] - g[:, ei] * se[ei]) / ee[ei]
            lm[:, ei] += log_ndtr(mean / np.sqrt(q[:, ei] / df / ee[ei]))
        if D.bounds is not None:
            level = centre + (b0 - g * s1) / a
            sdl = np.sqrt(q / df / a)
            lm += log_ndtr((level - D.bounds[0] + sdl) / sdl)
        out.lm[i], out.g[i], out.q[i], out.h[i] = lm, g, q, h
        for name, v in (("a", a), ("b0", b0), ("s1", s1), ("e1", e1), ("ee", ee), ("ey", ey), ("se", se)):
            parts[name][i] = v
    out.parts = parts
    return out


def least_gain(D):
    return P.LEAST_SHARE * (D.room if D.bounds is not None else D.span)


def log_gain_late(g, D):
    """Prior of the gain of a rise that has not begun: even."""
    return np.where(g > 0, -np.log(D.late_room), 0.0)


def log_gain(g, D):
    """Prior of the gain: even in its logarithm, with less weight towards all that is possible."""
    if D.bounds is None:
        f = lambda s: 1 / (1 + s)  # noqa
        grid = np.exp(np.linspace(np.log(P.LEAST_SHARE), np.log(P.ROOM), 64))
        return np.log(f(g / D.span) / g / (f(grid).mean() * np.log(P.ROOM / P.LEAST_SHARE)))
    share = g / D.room
    return np.log((1 - 0.5 * share) / g / (np.log(1 / P.LEAST_SHARE) - 0.5 * (1 - P.LEAST_SHARE)))


@dataclass
class Posterior:
    data: Data
    prob: dict
    d: dict
    covs: list
    reach: np.ndarray

    def curve(self, x):
        d = self.d; col = lambda k: d[k][:, None]  # noqa
        x = np.atleast_1d(x)[None]
        return (col("level") + col("gain") * shape_of(x, col("hyp"), col("b"), col("m"), col("p"))
                + col("extra") * extra_of(x, col("hyp"), col("p"), col("length")))

    @property
    def ceiling(self):
        d = self.d
        fall = d["hyp"] == FALL
        top = d["level"] + d["gain"] * np.where(fall, sigmoid(np.log(np.where(fall, d["p"], 1.0)), d["b"], d["m"]), np.where(d["hyp"] == FLAT, 0.0, 1.0))
        top = top + np.where((d["hyp"] == SECOND) | (d["hyp"] == TAIL), d["extra"], 0)
        top = top + d["far"] * d["misfit"] * self.data.span / self.data.sig * d["sigma"]
        return top if self.data.bounds is None else np.clip(top, *self.data.bounds)

    def interval(self, level=0.9):
        return np.quantile(self.ceiling, [0.5 - level / 2, 0.5 + level / 2])

    def p_flat(self):
        return float(np.mean(self.d["flat_like"]))

    def new(self, compute, noise=True, rng=None):
        """Draws of a new evaluation at each compute: curve, conditional drift and misfit, noise."""
        rng = rng or np.random.default_rng(1)
        D, d = self.data, self.d
        compute = np.atleast_1d(np.asarray(compute, float)); x = np.log(compute / D.scale)
        last = D.index.max()
        index = last + (compute - D.scale) / D.spacing
        out = self.curve(x)
        fitted = self.curve(D.x)
        z = rng.standard_normal(out.shape)
        # after a fall a run may go on falling or recover: as much again with each doubling
        fallen = d["extra"] * decline(0.0, np.where(d["hyp"] == FALL, d["p"], 0.5), d["length"]) * (d["hyp"] == FALL)
        out += np.sqrt(np.log2(np.maximum(compute / D.scale, 1.0)))[None] * (fallen * d["far"])[:, None]
        wn = np.median(D.w * D.sizes)
        for k in np.unique(d["cov"]):
            cov = self.covs[k]; mine = np.flatnonzero(d["cov"] == k)
            if cov.drift or cov.misfit or cov.spread:
                one = np.zeros(len(x), int) if D.run.max() == 0 else np.full(len(x), -1)
                t = np.interp(x, np.sort(D.x), self.reach[np.argsort(D.x)])
                K = covariance(D, cov, index, one, x, t, D.index, D.run, D.x, self.reach, 1, 1)
                R = np.diag(D.w) + covariance(D, cov, D.index, D.run, D.x, self.reach, D.index, D.run, D.x, self.reach, 1, 1)
                W = np.linalg.solve(R, K.T).T
                own = cov.drift + (cov.misfit * D.span / D.sig) ** 2 + (cov.spread * D.span / D.sig) ** 2 * t**2
                var = np.maximum(own - np.einsum("ij,ij->i", W, K), 0.0)
                out[mine] += (D.y - fitted[mine]) @ W.T
            else:
                var = np.zeros(len(x))
            out[mine] += d["sigma"][mine, None] * np.sqrt(var + (wn if noise else 0.0)) * z[mine]
        return out if D.bounds is None else np.clip(out, *D.bounds)


def columns(D, cells):
    x = D.x[:, None]
    return shape_of(x, cells.hyp, cells.b, cells.m, cells.p), extra_of(x, cells.hyp, cells.p, cells.length)


def log_sum(lm, axes):
    top = lm.max()
    return top + np.log(np.maximum(np.exp(lm - top).sum(axes), 1e-300))


def fit(c, y, *, seed=0, **kw):
    D = prepare(c, y, **kw)
    D.room = (max(D.bounds[1] - (D.start if D.start is not None else np.quantile(D.y, 0.1)), 0.02 * (D.bounds[1] - D.bounds[0]))
              if D.bounds is not None else P.ROOM * D.span)
    D.late_room = D.room if D.bounds is not None else max(D.room, P.LATE_ROOM * D.sig)
    low = max(D.x.min() - 2, P.MIDPOINTS[0])
    every = branches(D)
    reach = np.zeros(D.n)
    if D.run.max() > 0:
        first = Cov(0, 1, 0, 0, 0.0); w = np.append(D.w, D.start_var) if D.start is not None else D.w
        first.inverse = np.diag(1 / np.sqrt(w))
        b, m, _ = search(D, first, every.take(every.hyp == RISE), low)
        reach = sigmoid(D.x, b[0], m[0])
    covs = covariances(D, reach)
    pick = [covs[i] for i in P.PICK] if D.run.max() == 0 else [covs[0], covs[-4]]
    found, weights = [], []
    for cov in pick:
        b, m, cov2 = search(D, cov, every, low)
        few = around(every, b, m, cov2, 3, 2.2)
        lm = log_sum(masses(D, pick, few, *columns(D, few), quick=True).lm, (0, 1)).reshape(len(b), -1)
        found.append((b, m, cov2)); weights.append(log_sum(lm, 1) if False else lm.max(1) + np.log(np.exp(lm - lm.max(1, keepdims=True)).sum(1)))
    weights = np.array(weights)
    best = weights.argmax(0); total = weights.max(0); total = total - log_sum(total, 0)
    pickup = lambda i: np.choose(best if found[0][i].ndim == 1 else best[:, None, None], [f[i] for f in found])  # noqa
    b, m, cov2 = pickup(0), pickup(1), pickup(2)
    cells = []
    flat = every.hyp == FLAT
    cells.append(every.take(flat))
    for lowest, highest, num in ((-1.0, 1.0, 15), (-2.5, -1.0, 9), (-8.0, -2.5, 5)):
        mine = (total > lowest) & (total <= highest) & ~flat
        if mine.any():
            cells.append(around(every.take(mine), b[mine], m[mine], cov2[mine], num, 3.5))
    cells = Cells.join(cells)
    mass = masses(D, covs, cells, *columns(D, cells))
    rng = np.random.default_rng(seed)
    lm = mass.lm
    top = lm.max(); p = np.exp(lm - top).ravel(); cum = np.cumsum(p); total = cum[-1]
    per = np.exp(lm - top).sum((0, 1)) / total
    prob = {name: float(per[cells.hyp == k].sum()) for k, name in enumerate(NAMES)}
    at = np.searchsorted(cum, (np.arange(NUM_DRAWS) + rng.uniform()) / NUM_DRAWS * total).clip(0, len(p) - 1)
    ci, node, cell = np.unravel_index(at, lm.shape)
    num = NUM_DRAWS
    g, q = mass.g[ci, node, cell], mass.q[ci, node, cell]
    nu = P.KNOWN_NOISE_DF if D.known else P.NOISE_DF; df = D.n + nu
    sigma = np.sqrt(q / rng.chisquare(df, num))
    pt = {k: v[ci, cell] for k, v in mass.parts.items()}
    hyp = cells.hyp[cell]
    has_extra = (hyp == SECOND) | (hyp == TAIL) | (hyp == FALL)
    mean = (pt["ey"] - g * pt["se"]) / pt["ee"]; sd = sigma / np.sqrt(pt["ee"])
    lo = ndtr(-mean / sd)
    extra = np.where(has_extra, np.maximum(mean + sd * ndtri(np.clip(lo + (1 - lo) * rng.uniform(size=num), 1e-12, 1 - 1e-12)), 0), 0.0)
    centre = D.start if D.start is not None else D.y[0]
    level = centre + (pt["b0"] - g * pt["s1"] - extra * pt["e1"]) / pt["a"] + sigma / np.sqrt(pt["a"]) * rng.standard_normal(num)
    flat_like = (hyp == FLAT) | ((hyp != FALL) & (g < P.NOTICED * sigma / np.sqrt(mass.h[ci, cell])) & (~has_extra | (extra < P.NOTICED * sd)))
    d = dict(level=level, gain=g, b=cells.b[cell], m=cells.m[cell], p=cells.p[cell], length=cells.length[cell], hyp=hyp, extra=extra, sigma=sigma,
             cov=ci, misfit=np.array([c.misfit for c in covs])[ci], flat_like=flat_like, far=rng.standard_normal(num))
    order = rng.permutation(num)
    return Posterior(D, prob, {k: v[order] for k, v in d.items()}, covs, reach)
