"""
A table with categories and missing values
==========================================

Real tables have text columns and gaps. scikit-learn's own transformers turn them into numbers, and
:class:`~farfield.learn.StableMLPRegressor` stands at the end of the pipeline like any other regressor. Its range
holds for whatever comes in: a category nobody has seen, an empty cell, a sensor that reads nonsense.
"""

# %%
# The table
# ---------
#
# Energy use of buildings: what kind, how large, how cold outside. One row in ten has no area.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import farfield as ff

draw = np.random.default_rng(0)
n = 1200
kind = draw.choice(["office", "school", "hospital"], size=n, p=[0.6, 0.3, 0.1])
area = draw.gamma(4.0, 0.5, size=n)  # in 1,000 m²
outside = draw.normal(8.0, 7.0, size=n)  # in °C
need = {"office": 1.0, "school": 0.7, "hospital": 2.2}
load = np.array([need[k] for k in kind]) * area * (1.0 + 0.06 * np.maximum(18.0 - outside, 0.0))
load += 0.1 * draw.normal(size=n)
area[draw.uniform(size=n) < 0.1] = np.nan

X = np.empty((n, 3), dtype=object)
X[:, 0], X[:, 1], X[:, 2] = kind, area, outside
X_train, X_test, y_train, y_test = train_test_split(X, load, random_state=0)

# %%
# The pipeline
# ------------
#
# A category that was not in training becomes a row of zeros; a missing number becomes the median, and a column of its
# own says that it was missing.

model = make_pipeline(
    make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), [0]),
        (SimpleImputer(strategy="median", add_indicator=True), [1, 2]),
    ),
    ff.StableMLPRegressor(random_state=0, max_epochs=60),
)
model.fit(X_train, y_train)
print(f"R² on held-out rows: {model.score(X_test, y_test):.3f}")

# %%
# What it can never say
# ---------------------

regressor = model[-1]
print(regressor.far_field_report_)

# %%
# Strange rows all get an answer in the range. The standard deviation is that of the error *near the data*: for these
# rows it promises nothing.

strange = np.array(
    [["stadium", 2.0, 5.0], ["office", np.nan, np.nan], ["school", 2.0, -40_000.0], ["hospital", 1e12, 5.0]],
    dtype=object,
)
low, high = regressor.output_range_
mean, deviation = model.predict(strange, return_std=True)
for row, m, d in zip(strange, mean, deviation, strict=True):
    assert low <= m <= high
    print(f"{row!s:<32} {m:6.2f} ± {d:.2f}")

# %%
# An outside temperature that no thermometer has read, for each kind of building:

swept = np.linspace(-150, 150, 601)
figure, axis = plt.subplots(figsize=(7, 4))
axis.axhspan(low, high, color="0.93", label="output_range_")
axis.axvspan(outside.min(), outside.max(), color="0.82", label="temperatures in the table")
for name in need:
    rows = np.empty((len(swept), 3), dtype=object)
    rows[:, 0], rows[:, 1], rows[:, 2] = name, 2.0, swept
    axis.plot(swept, model.predict(rows), label=name)
axis.set(xlabel="outside temperature, °C", ylabel="predicted load", xlim=(-150, 150))
axis.legend(loc="upper right", fontsize="small")
figure.tight_layout()
