"""Progressive disclosure: the strategies by which a model opens summarized sections."""
