"""Pages of answers, in the frame of Plesio's reports."""
