"""Finds texts that the canvas cuts and texts that lie on each other, as a figure is drawn."""

import numpy as np
from matplotlib.axis import Axis, Tick
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text


def seen(artist):
    """The artist and all below it that are drawn."""
    if not artist.get_visible() or isinstance(artist, Axis) and not artist.axes.axison:
        return
    yield artist
    low, high = sorted(artist.get_view_interval()) if isinstance(artist, Axis) else (0, 0)
    slack = 1e-9 * (high - low)
    for child in artist.get_children():
        if not isinstance(child, Tick) or low - slack <= child.get_loc() <= high + slack:
            yield from seen(child)


def check_figure(figure):
    """(problem, text) for each text that is cut or lies on another, and for a figure without an alternative text."""
    theirs, dpi, canvas = figure.canvas, figure.dpi, FigureCanvasAgg(figure)
    figure.set_dpi(120)
    canvas.draw()  # a first drawing settles the layout, as it does when a figure is saved
    canvas.draw()
    texts = [one for one in seen(figure) if isinstance(one, Text) and one.get_text().strip()]
    box = np.array([text.get_window_extent(canvas.get_renderer()).extents for text in texts]).reshape(-1, 4)
    names, half, found = [" ".join(text.get_text().split()) for text in texts], figure.dpi / 144, []
    for text, name, (x0, y0, x1, y1) in zip(texts, names, box):
        clip = [text.get_clip_box().extents] if text.get_clip_on() and text.get_clip_box() else []
        if max(max(a - x0, b - y0, x1 - c, y1 - d) for a, b, c, d in [figure.bbox.extents, *clip]) > 2 * half:
            found.append(("cut text", name))
    low, high = np.maximum(box[:, None, :2], box[None, :, :2]), np.minimum(box[:, None, 2:], box[None, :, 2:])
    for i, j in np.argwhere(np.triu((high - low > half).all(axis=2), 1)):
        found.append(("overlapping texts", f"{names[i]} / {names[j]}"))
    figure.set_dpi(dpi)
    figure.set_canvas(theirs)
    if not getattr(figure, "qgcam_alt", ""):
        found.append(("no alternative text", "figure"))
    return found
