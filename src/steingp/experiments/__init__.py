"""The paper's studies, and the data they need."""
