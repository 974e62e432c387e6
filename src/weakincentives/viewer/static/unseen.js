// Characters that hide, made visible; the same table as in the library's `_base/visible.py`.

// Controls, formats, separators, private use, fillers, selectors and tags.
const UNSEEN =
  "\\u{0}-\\u{8}\\u{b}-\\u{1f}\\u{7f}-\\u{9f}\\u{ad}\\u{34f}\\u{600}-\\u{605}\\u{61c}\\u{6dd}\\u{70f}\\u{890}\\u{891}\\u{8e2}" +
  "\\u{115f}\\u{1160}\\u{17b4}\\u{17b5}\\u{180b}-\\u{180f}\\u{200b}-\\u{200f}\\u{2028}-\\u{202e}\\u{2060}-\\u{206f}\\u{2800}" +
  "\\u{3164}\\u{d800}-\\u{f8ff}\\u{fdd0}-\\u{fdef}\\u{fe00}-\\u{fe0f}\\u{feff}\\u{ffa0}\\u{fff0}-\\u{fffb}\\u{fffe}\\u{ffff}" +
  "\\u{110bd}\\u{110cd}\\u{13430}-\\u{1345f}\\u{1bca0}-\\u{1bca3}\\u{1d173}-\\u{1d17a}\\u{e0000}-\\u{10ffff}";

// Where some of them belong to the writing: joiners in Arabic and Indic words, and emoji.
const JOINING = "\\u{600}-\\u{dff}";
const EMOJI =
  "#*0-9\\u{a9}\\u{ae}\\u{203c}\\u{2049}\\u{2122}\\u{2139}\\u{2190}-\\u{21ff}\\u{2300}-\\u{23ff}\\u{24c2}\\u{25a0}-\\u{27bf}" +
  "\\u{2900}-\\u{297f}\\u{2b00}-\\u{2bff}\\u{3030}\\u{303d}\\u{3297}\\u{3299}\\u{1f000}-\\u{1faff}";
const KEPT = [
  `(?<=[${JOINING}])[\\u{200c}\\u{200d}](?=[${JOINING}])`,
  `(?<=[${EMOJI}])[\\u{fe0e}\\u{fe0f}]`,
  `(?<=[${EMOJI}\\u{fe0f}])\\u{200d}(?=[${EMOJI}])`,
];
const PATTERN = new RegExp(`${KEPT.join("|")}|(?<unseen>[${UNSEEN}])`, "gu");

export function visible(text) {
  return text.replace(PATTERN, (match, unseen) => {
    if (unseen === undefined) return match;
    const code = unseen.codePointAt(0);
    if (code < 0x20) return String.fromCodePoint(0x2400 + code);
    if (code === 0x7f) return "␡";
    return `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}

// Text for a field in which JSON is edited: what hides is an escape there, which means the same.
const ANY = new RegExp(`[${UNSEEN}]`, "gu");

export function escaped(text) {
  return text.replace(ANY, (character) => {
    const units = [];
    for (let at = 0; at < character.length; at += 1) units.push(`\\u${character.charCodeAt(at).toString(16).padStart(4, "0")}`);
    return units.join("");
  });
}
