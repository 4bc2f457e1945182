"""Result files told to people: a comparison as data (`model`), then a page, a table and a Perfetto trace.

Reads only files, so a report can be rebuilt anywhere, at any time, without torch.
"""

from plesio.core.extras import require

require("report", "A report")
