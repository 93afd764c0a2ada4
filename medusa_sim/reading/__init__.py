"""What is read: files within limits, documents and tables made of them."""
