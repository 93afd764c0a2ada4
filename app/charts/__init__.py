"""Pure functions: results of the package -> Vega-Lite specifications. No Streamlit here."""
