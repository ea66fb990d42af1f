"""What a method reads, end to end: documents, masked documents, examples, labelled texts."""
