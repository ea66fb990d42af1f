"""A server with the protocol of OpenAI's API: chats, texts and the name of the model."""
