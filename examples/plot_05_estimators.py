"""
Estimators: a regressor with a known range
==========================================

:class:`~farfield.learn.StableMLPRegressor` is fitted like any estimator of scikit-learn. Its predictions stay in a
range that is known and proved, however far away it is asked. Beside it: scikit-learn's own perceptron and a random
forest.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.ensemble import RandomForestRegressor
from sklearn.neural_network import MLPRegressor

import farfield as ff

rng = np.random.default_rng(0)
X = rng.uniform(-3, 3, (200, 1))
y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 0] + 0.1 * rng.normal(size=200)

models = {
    "StableMLPRegressor": ff.StableMLPRegressor(n_members=2, certified_range=(-3, 3), random_state=0),
    "MLPRegressor": MLPRegressor(hidden_layer_sizes=(128, 128), max_iter=1000, random_state=0),
    "RandomForestRegressor": RandomForestRegressor(random_state=0),
}
for model in models.values():
    model.fit(X, y)

# %%
# Far away
# --------

for name, model in models.items():
    print(f"{name} at x = 10⁶: {model.predict([[1e6]])[0]:.3g}")
low, high = models["StableMLPRegressor"].output_range_
print(f"proved range of StableMLPRegressor: {low:.2f} to {high:.2f}")

# %%
# The same near by
# ----------------

x = np.linspace(-12, 12, 600)[:, None]
figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
axes.axvspan(-3, 3, color="black", alpha=0.06, linewidth=0)
axes.plot(X[:, 0], y, ".", color="black", markersize=3, label="data")
for color, (name, model) in zip(("#0072B2", "#D55E00", "#E69F00"), models.items(), strict=True):
    axes.plot(x, model.predict(x), color=color, label=name)
for bound, label in ((low, "proved range"), (high, None)):
    axes.axhline(bound, color="#009E73", linewidth=1, label=label)
axes.set(xlabel="x", ylabel="prediction", ylim=(-6, 6))
axes.grid(visible=True, alpha=0.25)
axes.spines[["top", "right"]].set_visible(False)
axes.legend(fontsize=8, ncols=2)
