"""Plain English to run through a language model, written for this purpose."""

from __future__ import annotations

from typing import Final

__all__ = ["TEXTS"]

_PARAGRAPHS = """
The ferry leaves the north pier at six in the morning, long before the fog has lifted from the river. Two
men coil the ropes while the engine warms up, and a woman with a basket of eggs takes the seat nearest the
window. Nobody talks much at that hour. By the time the sun reaches the hills the boat has passed three
villages, and the eggs have been sold to the cook, who fries them with onions and shares the pan with
whoever is awake.

A bridge carries its load in one of a few ways. An arch pushes outward against its banks and is never pulled
anywhere along its length, which is why old builders could make it from stone. A cable hangs between towers
and is pulled everywhere, so it must be steel. A beam does both at once: its upper edge is squeezed, its
lower edge is stretched, and somewhere between them runs a line that feels nothing at all.

To make bread on a cold day, mix flour, water and salt with half the usual yeast and leave the bowl in the
kitchen overnight. The dough will look wet and dull. Fold it over itself four times, wait an hour, and fold
it again. Heat the oven as high as it goes with an iron pot inside, tip the dough into the pot, put the lid
on, and bake for half an hour. Then take the lid off until the crust is the color of chestnuts.

Swifts spend almost their whole lives in the air. They eat, drink and sleep on the wing, and a young bird
that leaves its nest may not touch anything solid for two years. Their legs are so short that they cannot
take off from flat ground with ease. When the weather turns bad over one country they fly around the storm,
sometimes several hundred miles, and return when insects rise again in the warm air behind it.

The committee met on Tuesday to discuss the budget for the library. Mrs Okafor asked why heating had cost
twice as much as last year, and the treasurer replied that the boiler had been repaired in January and again
in March. It was agreed to ask three firms for the price of a new one. A proposal to open on Sundays was put
off until the autumn, since four members were absent and nobody could say who would hold the keys.

When light enters glass it slows down, and if it enters at an angle it turns. Blue light is slowed a little
more than red, so a wedge of glass spreads white light into a band of colors. For a long time people
believed that the glass added the colors. The test was simple: let one color alone pass through a second
wedge, and look. It bent again, but no further colors came out of it.

My grandfather kept a ledger of the weather for forty years, one line for every day, in a hand that grew
smaller as paper grew dear. He wrote the wind, the rain in a jar by the gate, and the first day each spring
on which he heard a cuckoo. He drew no conclusions. After his death a student copied the numbers, and found
that the cuckoo had come, on average, nine days earlier at the end than at the beginning.

A queue forms wherever arrivals are irregular, even if the clerk is faster than the customers on average.
Suppose one person comes every five minutes and needs four. If they came like a clock, nobody would ever
wait. They come in bunches instead, and time the clerk loses while the room is empty cannot be saved for
later. Make the clerk ten per cent quicker and the line may shrink by half.
"""

TEXTS: Final = tuple(" ".join(paragraph.split()) for paragraph in _PARAGRAPHS.strip().split("\n\n"))
"""Eight paragraphs on unlike matters, of 70 words or more."""
