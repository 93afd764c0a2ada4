"""Twenty names that a file, a folder or a link may have; some target takes each for more than a name."""

NAMES = {
    "html": "<img src=x onerror=alert(1)>",
    "script": "</title><script>alert(1)</script>",
    "entity": "&lt;b&gt; &#60;i&#62;",
    "attribute": "a\" onmouseover='alert(1)",
    "picture": "![x](https://example.com/p.png)",
    "link": "**Expired.** [Sign in again](https://example.com)",
    "address": "https://example.com/?q=1 www.example.com me@example.com",
    "reference": "[x][1]\n\n[1]: https://example.com",
    "code": "`a` ``b`` ```c",
    "heading": "# a\n\n---\n- b",
    "table": "a|b\n|---|\n|c|",
    "formula": "$x$ and $\\frac{a}{$ ~~c~~ *d* _e_",
    "streamlit": ":red[x] :material/home: :smile: :orange-badge[y]",
    "shell": "$(touch PWNED)`touch PWNED`;touch PWNED&&touch PWNED",
    "quotes": "'; touch PWNED; echo '\"$HOME\"",
    "comment": "a\ntouch PWNED #",
    "terminal": "a\x1b[31mb\x1b]0;title\x07\x9b2Jc\rd",
    "directions": "a\u202egnp.exe\u2066\u200b\ufeff\u2028b",
    "spreadsheet": "=1+1",
    "dial": "@SUM(A1)+cmd|' /C calc'!A0",
}
