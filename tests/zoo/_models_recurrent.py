"""Recurrent networks: gates bound the hidden state, not everything around it."""

from __future__ import annotations

import torch
from torch import nn

from zoo._specimen import BOUNDED, UNBOUNDED, Family, compose

house = Family("recurrent")
T, D, H = 5, 4, 6


def sequence():
    return (torch.randn(2, T, D),)


def read_last(layer, width=H):
    def forward(m, x):
        out, _ = m.layer(x)
        return m.head(out[:, -1])

    return compose(forward, layer=layer, head=nn.Linear(width, 2))


house.add(
    "lstm", lambda: (read_last(nn.LSTM(D, H, batch_first=True)), sequence()), BOUNDED, "|h| = |o·tanh c| < 1"
)
house.add(
    "gru",
    lambda: (read_last(nn.GRU(D, H, batch_first=True)), sequence()),
    BOUNDED,
    "h averages values of tanh, from h₀ = 0",
)
house.add("rnn_tanh", lambda: (read_last(nn.RNN(D, H, batch_first=True)), sequence()), BOUNDED, "h is a tanh")
house.add(
    "rnn_relu",
    lambda: (read_last(nn.RNN(D, H, batch_first=True, nonlinearity="relu")), sequence()),
    UNBOUNDED,
    "a ReLU network with shared weights",
    degree=1.0,
)
house.add(
    "two_layer_bidirectional_gru",
    lambda: (
        read_last(nn.GRU(D, H, num_layers=2, dropout=0.1, bidirectional=True, batch_first=True), 2 * H),
        sequence(),
    ),
    BOUNDED,
    "both directions of both layers average values of tanh",
)
house.add(
    "lstm_with_projection",
    lambda: (read_last(nn.LSTM(D, H, proj_size=3, batch_first=True), 3), sequence()),
    BOUNDED,
    "h = W(o·tanh c) with a fixed W",
)


@house.bounded("|h| < 1 and |c_T| ≤ T, one per step from c₀ = 0", bound=float(T))
def lstm_all_states():
    def forward(m, x):
        out, (h, c) = m.layer(x)
        return out, h, c

    return compose(forward, layer=nn.LSTM(D, H, batch_first=True)), sequence()


@house.unbounded("the input is added after the recurrence", degree=1.0)
def lstm_with_input_skip():
    def forward(m, x):
        out, _ = m.layer(x)
        return m.head(out + m.skip(x))

    return (
        compose(forward, layer=nn.LSTM(D, H, batch_first=True), skip=nn.Linear(D, H), head=nn.Linear(H, 1)),
        sequence(),
    )


@house.unbounded(
    "z·h₀ + (1 − z)·n: where the gate holds, the initial state passes; the sequence only moves gates and tanh",
    alone={"x": BOUNDED, "start": UNBOUNDED},
    degree=1.0,
)
def gru_with_initial_state():
    def forward(m, x, start):
        out, _ = m.layer(x, start.unsqueeze(0))
        return m.head(out[:, -1])

    return (
        compose(forward, layer=nn.GRU(D, H, batch_first=True), head=nn.Linear(H, 2)),
        (torch.randn(2, 2, D), torch.randn(2, H)),
    )


@house.bounded(
    "h = o·tanh(c) whatever h₀ and c₀ are", alone={"x": BOUNDED, "hidden": BOUNDED, "cell": BOUNDED}
)
def lstm_with_initial_state():
    def forward(m, x, hidden, cell):
        out, _ = m.layer(x, (hidden.unsqueeze(0), cell.unsqueeze(0)))
        return m.head(out[:, -1])

    return (
        compose(forward, layer=nn.LSTM(D, H, batch_first=True), head=nn.Linear(H, 2)),
        (torch.randn(2, 2, D), torch.randn(2, H), torch.randn(2, H)),
    )


@house.unbounded(
    "c₁ = f·c₀ + i·g: a forget gate that stays open carries c₀; x and h₀ move only gates and tanh",
    outputs=(BOUNDED, UNBOUNDED),
    alone={"x": BOUNDED, "hidden": BOUNDED, "cell": UNBOUNDED},
    degree=1.0,
)
def lstm_cell_state_carried():
    def forward(m, x, hidden, cell):
        return m.layer(x, (hidden, cell))

    return compose(forward, layer=nn.LSTMCell(D, H)), (
        torch.randn(2, D),
        torch.randn(2, H),
        torch.randn(2, H),
    )


@house.bounded("an LSTM cell feeding a GRU cell, unrolled in Python", slow=True)
def unrolled_cells():
    def forward(m, x):
        h = c = g = x.new_zeros(x.shape[0], H)
        for t in range(T):
            h, c = m.lstm(x[:, t], (h, c))
            g = m.gru(h, g)
        return m.head(g)

    return compose(forward, lstm=nn.LSTMCell(D, H), gru=nn.GRUCell(H, H), head=nn.Linear(H, 1)), sequence()


@house.bounded("h ← relu(norm(Wx + Uh)): normalized at every step")
def layer_norm_rnn():
    def forward(m, x):
        h = x.new_zeros(x.shape[0], H)
        for t in range(T):
            h = torch.relu(m.norm(m.inp(x[:, t]) + m.rec(h)))
        return m.head(h)

    return (
        compose(
            forward,
            inp=nn.Linear(D, H),
            rec=nn.Linear(H, H, bias=False),
            norm=nn.LayerNorm(H),
            head=nn.Linear(H, 1),
        ),
        sequence(),
    )


@house.unbounded("h ← a·h + Bx with |a| < 1: a stable linear state space is still linear in x", degree=1.0)
def linear_state_space():
    def forward(m, x):
        decay = torch.exp(-torch.exp(m.log_rate))
        h = x.new_zeros(x.shape[0], H)
        for t in range(T):
            h = decay * h + m.inp(x[:, t])
        return m.out(h)

    return (
        compose(
            forward,
            log_rate=nn.Parameter(torch.randn(H)),
            inp=nn.Linear(D, H, bias=False),
            out=nn.Linear(H, 1),
        ),
        sequence(),
    )


@house.unbounded("h ← (1 − z)·h + z·Wx: gates average, and what they average is linear", degree=1.0)
def minimal_gru():
    def forward(m, x):
        h = x.new_zeros(x.shape[0], H)
        for t in range(T):
            z = torch.sigmoid(m.gate(x[:, t]))
            h = (1.0 - z) * h + z * m.value(x[:, t])
        return m.out(h)

    return compose(forward, gate=nn.Linear(D, H), value=nn.Linear(D, H), out=nn.Linear(H, 1)), sequence()


@house.bounded("attention over LSTM states: a convex combination of bounded vectors")
def attention_over_lstm_states():
    def forward(m, x):
        out, _ = m.layer(x)
        weights = torch.softmax(m.score(torch.tanh(m.key(out))), 1)
        return m.head((weights * out).sum(1))

    return (
        compose(
            forward,
            layer=nn.LSTM(D, H, batch_first=True),
            key=nn.Linear(H, H),
            score=nn.Linear(H, 1),
            head=nn.Linear(H, 1),
        ),
        sequence(),
    )
