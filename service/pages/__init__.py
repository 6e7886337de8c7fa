"""The words and charts of the page; no HTTP and no queries of their own."""
