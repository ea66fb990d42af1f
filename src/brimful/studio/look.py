"""How the page looks: Gradio's plain theme in the colours of the reports, with fonts that every
system has.
"""

import gradio as gr

FONTS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif")
MONOSPACED = ("ui-monospace", "Cascadia Mono", "Menlo", "Consolas", "monospace")
PAGE = {"body_background_fill": "#fbfaf8", "body_background_fill_dark": "#14171a"}
"""Needed before the style sheet is read; it has the same, as it has all other colours."""
WITHOUT_DARK = {"color_accent"}
COLOURED = {
    "background_fill_primary": "page",
    "background_fill_secondary": "page",
    "body_text_color": "ink",
    "body_text_color_subdued": "soft",
    "block_title_text_color": "ink",
    "block_label_text_color": "ink",
    "block_info_text_color": "soft",
    "accordion_text_color": "ink",
    "color_accent": "accent",
    "color_accent_soft": "accent-soft",
    "border_color_accent": "accent",
    "loader_color": "accent",
    "slider_color": "accent",
    "border_color_primary": "edge",
    "block_border_color": "edge",
    "link_text_color": "accent",
    "link_text_color_hover": "accent",
    "input_background_fill": "card",
    "input_background_fill_focus": "card",
    "input_border_color": "edge",
    "input_border_color_focus": "accent",
    "input_placeholder_color": "faint",
    "checkbox_background_color": "card",
    "checkbox_background_color_selected": "accent",
    "checkbox_border_color": "edge",
    "checkbox_border_color_selected": "accent",
    "checkbox_label_background_fill": "button",
    "checkbox_label_background_fill_hover": "button",
    "checkbox_label_background_fill_selected": "accent-soft",
    "checkbox_label_text_color": "ink",
    "checkbox_label_text_color_selected": "ink",
    "button_primary_background_fill": "accent",
    "button_primary_background_fill_hover": "accent",
    "button_primary_text_color": "on-accent",
    "button_primary_border_color": "accent",
    "button_secondary_background_fill": "button",
    "button_secondary_background_fill_hover": "edge",
    "button_secondary_text_color": "ink",
    "button_secondary_border_color": "edge",
}
"""Which colour of the style sheet each variable of the theme takes."""
PLAIN = {
    "block_background_fill": "transparent",
    "block_border_width": "0px",
    "block_padding": "0px",
    "block_shadow": "none",
    "form_gap_width": "0px",
    "block_title_text_weight": "600",
    "block_title_text_size": "13px",
    "block_info_text_size": "12px",
    "input_border_width": "1px",
    "input_padding": "6px 8px",
    "input_text_size": "13px",
    "layout_gap": "12px",
    "button_large_text_size": "13px",
    "button_large_text_weight": "600",
    "button_large_padding": "6px 12px",
    "button_border_width": "1px",
    "checkbox_label_padding": "4px 8px",
    "checkbox_label_text_size": "13px",
    "checkbox_label_gap": "6px",
}


def theme() -> gr.themes.Base:
    """Light and dark, as the system has it."""
    plain = gr.themes.Base(
        text_size="sm", spacing_size="sm", radius_size="sm", font=FONTS, font_mono=MONOSPACED
    )
    colours = {name: f"var(--s-{colour})" for name, colour in COLOURED.items()}
    dark = {f"{name}_dark": colour for name, colour in colours.items() if name not in WITHOUT_DARK}
    return plain.set(
        **PAGE,
        **PLAIN,
        **colours,
        **dark,
        block_background_fill_dark="transparent",
        block_border_width_dark="0px",
        input_border_width_dark="1px",
    )
