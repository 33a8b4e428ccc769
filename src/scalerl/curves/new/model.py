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
COARSE, FINE, FEW = (14, 40), (18, 18), 3


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


class Sums:
    """Log mass of every cell and node under one covariance and one hypothesis, level and extra integrated out."""

    def __init__(self, D, cov, hyp, weight, S, log_prior, extra=None, place=0.0, length=0.0, cells=None):
        n = D.n; has = D.start is not None
        Li = cov.inverse
        pad = (lambda v: np.concatenate([v, np.zeros((1, v.shape[1]))])) if has else (lambda v: v)
        ya = np.append(D.y, D.start) if has else D.y
        yc = D.y[0] if not has else D.start
        self.hyp, self.cov, self.place, self.length, self.cells = hyp, cov, place, length, cells
        one = np.ones((len(ya), 1))
        N = Li @ one
        level_sd = max(0.5 * D.span, 1e-6) if not has else max(2 * D.span, 1e-6)
        prec = [(D.sig / level_sd) ** 2]; mu0 = [yc]
        if extra is not None:
            N = np.hstack([N, Li @ pad(extra[:, None])]); prec.append((D.sig / (P.SECOND_SD * D.span)) ** 2); mu0.append(0.0)
        prec, mu0 = np.array(prec), np.array(mu0)
        yw = Li @ ya
        A = N.T @ N + np.diag(prec); Ai = np.linalg.inv(A); by = N.T @ yw + prec * mu0
        base = cov.log_weight + 0.5 * np.log(prec).sum() - 0.5 * np.linalg.slogdet(A)[1] + np.log(P.HYPOTHESES[hyp] * weight)
        nu, s0 = (P.KNOWN_NOISE_DF, P.KNOWN_NOISE_DF * D.sig**2) if D.known else (P.NOISE_DF, P.NOISE_DF * D.sig**2)
        self.df = df = n + nu
        q0 = yw @ yw + prec @ mu0**2 - by @ Ai @ by
        self.Ai, self.by = Ai, by
        if S is None:
            self.g = np.zeros((1, 1)); self.q = np.array([[q0 + s0]]); self.lm = base - 0.5 * df * np.log(self.q)
            self.bs = np.zeros((len(prec), 1)); self.h = np.ones(1)
            if extra is not None:
                mean = (Ai[1] @ by)[None, None]
                self.lm = self.lm + log_ndtr(mean / np.sqrt(self.q / df * Ai[1, 1])) + np.log(2)
            return
        Sw = Li @ pad(S); bs = N.T @ Sw
        h = np.maximum(np.einsum("nj,nj->j", Sw, Sw) - np.einsum("ij,ij->j", bs, Ai @ bs), 1e-12)
        gy = Sw.T @ yw - bs.T @ (Ai @ by); ghat = gy / h
        Q = np.maximum(q0 - gy * ghat, 0) + s0; sd = np.sqrt(Q / df / h)
        room = D.room
        least = P.LEAST_SHARE * room
        beyond = np.maximum(np.maximum(least - ghat, ghat - room), 0) / sd
        reach = sd * 11.0 / (beyond + np.sqrt(beyond**2 + 4.0)); mid = np.clip(ghat, least, room)
        low, high = np.maximum(mid - reach, least), np.minimum(mid + reach, room)
        g = low + (high - low) * NODES[:, None]; q = Q + h * (g - ghat) ** 2; share = g / room
        pg = np.log((1 - 0.5 * share) / share / room / (np.log(1 / P.LEAST_SHARE) - 0.5 * (1 - P.LEAST_SHARE)))
        lm = base + log_prior - 0.5 * df * np.log(q) + pg + np.log(np.maximum(high - low, 1e-12) / len(NODES))
        if extra is not None:
            mean = Ai[1] @ by - (Ai[1] @ bs) * g
            lm = lm + log_ndtr(mean / np.sqrt(q / df * Ai[1, 1])) + np.log(2)
        if D.bounds is not None:
            lev = Ai[0] @ by - (Ai[0] @ bs) * g
            sdl = np.sqrt(q / df * Ai[0, 0])
            lm = lm + log_ndtr((lev - D.bounds[0] + 0.5 * sdl) / sdl)
        self.g, self.lm, self.q, self.bs, self.h = g, lm, q, bs, h


def cells_from(look, b_axis, m_axis, num):
    """A finer grid over the cells that hold the mass: rows of B, each with its own range of m."""
    rowmax = look.max(1); keep = np.flatnonzero(rowmax > rowmax.max() - 10)
    lo, hi = max(keep[0] - 1, 0), min(keep[-1] + 1, len(b_axis) - 1)
    blo, bhi = b_axis[lo], b_axis[hi]
    nb, nm = num
    if bhi > blo:
        edges = np.linspace(blo, bhi, nb + 1); bs = 0.5 * (edges[1:] + edges[:-1]); wb = (bhi - blo) / nb
    else:
        bs, wb = np.array([blo]), 1.0
    near = np.interp(bs, b_axis, np.arange(len(b_axis)))
    inside = look > rowmax[:, None] - 9
    mlo, mhi = np.empty(len(bs)), np.empty(len(bs))
    for i, f in enumerate(near):
        rows = inside[int(np.floor(f)): int(np.ceil(f)) + 1]
        ms = m_axis[int(np.floor(f)): int(np.ceil(f)) + 1]
        los, his = [], []
        for row, mm in zip(rows, ms):
            k = np.flatnonzero(row); los.append(mm[max(k[0] - 1, 0)]); his.append(mm[min(k[-1] + 1, len(mm) - 1)])
        mlo[i], mhi[i] = min(los), max(his)
    step = (mhi - mlo) / nm
    M = mlo[:, None] + step[:, None] * (np.arange(nm) + 0.5)
    B = np.broadcast_to(bs[:, None], M.shape)
    vol = np.broadcast_to(np.log(np.maximum(step, 1e-12) * wb)[:, None], M.shape)
    return B, M, vol


@dataclass
class Posterior:
    data: Data
    prob: dict
    d: dict
    covs: list
    reach: np.ndarray

    def curve(self, x, run_effect=None):
        d = self.d; col = lambda k: d[k][:, None]  # noqa
        x = np.atleast_1d(x)[None]
        until = np.where(d["fall"], d["place"], np.inf)[:, None]
        y = col("level") + col("gain") * sigmoid(np.minimum(x, until), col("b"), col("m"))
        sec = sigmoid(x, P.SECOND_EXPONENT, col("place"))
        down = -decline(x, col("place"), col("length"))
        return y + col("extra") * np.where(col("fall"), down, np.where(col("second"), sec, 0.0))

    @property
    def ceiling(self):
        d = self.d
        top = d["level"] + d["gain"] * sigmoid(np.where(d["fall"], d["place"], 60.0), d["b"], d["m"]) + np.where(d["second"], d["extra"], 0)
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
        last = np.array([D.index[D.run == r].max() for r in range(D.run.max() + 1)]).max()
        index = last + (compute - D.scale) / D.spacing
        out = self.curve(x)
        fitted = self.curve(D.x)
        z = rng.standard_normal(out.shape)
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


def decline(x, place, length):
    """How much of a fall has happened: 0 at its place, towards 1 after it."""
    c, p = np.exp(x), np.exp(place)
    with np.errstate(over="ignore"):
        return -np.expm1(-np.maximum(c - p, 0) / np.maximum(length * (1 - p), 1e-9))


def fit(c, y, *, seed=0, fixed=None, **kw):
    D = prepare(c, y, **kw)
    D.room = (max(D.bounds[1] - (D.start if D.start is not None else np.quantile(D.y, 0.1)), 0.02 * (D.bounds[1] - D.bounds[0]))
              if D.bounds is not None else P.ROOM * D.span)
    bm, bs_ = P.LOG_EXPONENT; mm, ms = P.LOG_MIDPOINT
    prior = lambda b, m: -0.5 * ((b - bm) / bs_) ** 2 - 0.5 * ((m - mm) / ms) ** 2 - np.log(2 * np.pi * bs_ * ms)  # noqa
    plain = Cov(0, 1, 0, 0, 0.0)
    def look_with(covs, B, M):
        S = sigmoid(D.x[:, None], B.ravel(), M.ravel()); lp = prior(B.ravel(), M.ravel())
        return np.max([Sums(D, c, "rise", 1.0, S, lp).lm.max(0) for c in covs], 0).reshape(B.shape)
    # how far each point has come, by a first look without correlations
    b0 = np.linspace(*P.EXPONENTS, COARSE[0]); m0 = np.linspace(max(D.x.min() - 2, P.MIDPOINTS[0]), P.MIDPOINTS[1], COARSE[1])
    B, M = np.meshgrid(b0, m0, indexing="ij")
    reach = np.zeros(D.n)
    if D.run.max() > 0:
        first = Cov(0, 1, 0, 0, 0.0); w = np.append(D.w, D.start_var) if D.start is not None else D.w
        first.inverse = np.diag(1 / np.sqrt(w))
        look = look_with([first], B, M); i, j = np.unravel_index(look.argmax(), look.shape)
        reach = sigmoid(D.x, b0[i], m0[j])
    covs = covariances(D, reach)
    pick = [covs[0], covs[len(covs) // 2], covs[-1]]
    look = look_with(pick, B, M); axis = np.broadcast_to(m0, B.shape)
    grid = cells_from(look, b0, axis, (12, 16))
    for num in ((12, 16), FINE):
        look = look_with(pick, grid[0], grid[1])
        grid = cells_from(look, grid[0][:, 0], grid[1], num)
    B, M, vol = grid
    lp = prior(B, M) + vol
    S = sigmoid(D.x[:, None], B.ravel(), M.ravel())
    few = np.zeros(B.shape, bool); few[1::FEW, 1::FEW] = True; few = np.flatnonzero(few.ravel())
    lpf = lp.ravel()[few] + np.log(B.size / len(few))
    n_last = [D.index[D.run == r].max() for r in range(D.run.max() + 1)]
    comp = np.exp(D.x)
    fall_places = np.log([p for p in P.FALL_SHARES if (comp > p).sum() >= 2 and (comp <= p).sum() >= 2])
    rows = []
    for ci, cov in enumerate(covs):
        rows.append(Sums(D, cov, "flat", 1.0, None, None)); rows[-1].ci = ci
        rows.append(Sums(D, cov, "rise", 1.0, S, lp.ravel(), cells=np.arange(B.size))); rows[-1].ci = ci
        for place in P.SECOND_PLACES:
            rows.append(Sums(D, cov, "second", 1 / len(P.SECOND_PLACES), S[:, few], lpf, sigmoid(D.x, P.SECOND_EXPONENT, place), place, cells=few)); rows[-1].ci = ci
        for place in fall_places:
            Sf = sigmoid(np.minimum(D.x, place)[:, None], B.ravel()[few], M.ravel()[few])
            for length in P.FALL_LENGTHS:
                rows.append(Sums(D, cov, "fall", 1 / len(P.FALL_SHARES) / len(P.FALL_LENGTHS), Sf, lpf, -decline(D.x, place, length), place, length, cells=few)); rows[-1].ci = ci
    rng = np.random.default_rng(seed)
    peak = max(r.lm.max() for r in rows)
    mass = np.array([np.exp(r.lm - peak).sum() for r in rows]); total = mass.sum()
    prob = {h: float(sum(m for r, m in zip(rows, mass) if r.hyp == h) / total) for h in P.HYPOTHESES}
    counts = np.diff(np.floor(np.cumsum(mass / total) * NUM_DRAWS + 0.5), prepend=0).astype(int)
    keys = ("level", "gain", "b", "m", "extra", "sigma", "place", "length", "second", "fall", "cov", "misfit", "flat_like")
    out = {k: [] for k in keys}
    Bf, Mf = B.ravel(), M.ravel()
    for r, num in zip(rows, counts):
        if not num: continue
        p = np.exp(r.lm - r.lm.max()).ravel(); pick_ = np.searchsorted(np.cumsum(p) / p.sum(), (np.arange(num) + rng.uniform()) / num).clip(0, len(p) - 1)
        node, cell = np.divmod(pick_, r.lm.shape[1]); g, q = r.g[node, cell], r.q[node, cell]
        sigma = np.sqrt(q / rng.chisquare(r.df, num))
        mean = r.Ai @ (r.by[:, None] - r.bs[:, cell] * g)
        z = rng.standard_normal((2, num))
        extra = np.zeros(num)
        if len(mean) > 1:
            sd1 = sigma * np.sqrt(r.Ai[1, 1]); lo = ndtr(-mean[1] / sd1)
            extra = np.maximum(mean[1] + sd1 * ndtri(np.clip(lo + (1 - lo) * rng.uniform(size=num), 1e-12, 1 - 1e-12)), 0)
            slope = r.Ai[0, 1] / r.Ai[1, 1]
            level = mean[0] + slope * (extra - mean[1]) + sigma * np.sqrt(max(r.Ai[0, 0] - slope * r.Ai[0, 1], 0)) * z[0]
        else:
            level = mean[0] + sigma * np.sqrt(r.Ai[0, 0]) * z[0]
        if r.hyp == "flat":
            b = np.full(num, 0.7); m = np.zeros(num); flat = np.ones(num, bool)
        else:
            b, m = Bf[r.cells[cell]], Mf[r.cells[cell]]
            top = sigmoid(0.0, b, m) - sigmoid(D.x.min() if D.start is None else -50, b, m)
            flat = (g < P.NOTICED * sigma / np.sqrt(r.h[cell])) & (r.hyp != "fall")
            if r.hyp == "second":
                flat &= extra * (sigmoid(0.0, P.SECOND_EXPONENT, r.place)) < P.NOTICED * sigma * np.sqrt(r.Ai[1, 1])
        new = dict(level=level, gain=g, b=b, m=m, extra=extra, sigma=sigma, place=np.full(num, r.place), length=np.full(num, max(r.length, 1e-3)),
                   second=np.full(num, r.hyp == "second"), fall=np.full(num, r.hyp == "fall"), cov=np.full(num, r.ci), misfit=np.full(num, r.cov.misfit), flat_like=flat)
        for k in keys: out[k].append(new[k])
    d = {k: np.concatenate(v) for k, v in out.items()}
    d["far"] = rng.standard_normal(len(d["gain"]))
    return Posterior(D, prob, d, covs, reach)
