"""The Streamlit application and the command line."""
