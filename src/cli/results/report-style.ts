// How the report looks. One text: the page's policy allows it by its hash.

export const style: string = `
:root { color-scheme: light dark; --ground: #fff; --card: #f6f7f9; --text: #1f2937; --faint: #6b7280; --line: #e2e5ea;
  --train: #5b8fca; --test: #c2410c; --good: #15803d; --bad: #b91c1c; --right: 21 128 61; --wrong: 185 28 28; }
@media (prefers-color-scheme: dark) { :root { --ground: #14171c; --card: #1d2128; --text: #e5e7eb; --faint: #9aa3af;
  --line: #333a44; --train: #7db0ea; --test: #fb923c; --good: #4ade80; --bad: #f87171; --right: 74 222 128;
  --wrong: 248 113 113; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 24px 16px 64px; }
h1 { font-size: 26px; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
header p { margin: 4px 0 0; color: var(--faint); overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 0 0 8px; }
h3 { font-size: 14px; margin: 0; }
section { margin-top: 36px; }
.note { color: var(--faint); font-size: 13px; margin: 0 0 8px; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: 10px; margin: 20px 0 0; }
.cards div { background: var(--card); border-radius: 8px; padding: 10px 12px; }
.cards dt { color: var(--faint); font-size: 13px; }
.cards dd { margin: 0; font-size: 21px; font-weight: 600; font-variant-numeric: tabular-nums; }
.cards dd.note { font-size: 12px; font-weight: 400; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr)); gap: 8px; }
figure { margin: 0; }
figure svg { display: block; width: 100%; max-width: 520px; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 14px; }
.wide + .wide { margin-top: 16px; }
th { font-weight: 500; color: var(--faint); text-align: left; font-size: 13px; }
th, td { padding: 4px 16px 4px 0; border-bottom: 1px solid var(--line); vertical-align: middle; white-space: nowrap; }
.number { text-align: right; }
.happenings td:last-child { white-space: normal; }
.bar { display: block; width: 120px; height: 8px; }
.bar .rest { fill: var(--line); }
.bar .part { fill: var(--train); }
.matrix { font-size: 13px; }
.matrix th { color: var(--text); font-weight: 400; padding: 2px 8px 2px 0; border: 0; max-width: 160px;
  overflow: hidden;
  text-overflow: ellipsis; }
.matrix thead td { border: 0; }
.matrix thead th { padding: 4px 2px; vertical-align: bottom; }
.matrix thead th span { writing-mode: vertical-rl; transform: rotate(180deg); max-height: 120px; overflow: hidden; }
.matrix td { text-align: center; min-width: 34px; height: 28px; padding: 0 3px; border: 1px solid var(--line); }
.right.s1, .right.s2 { background: rgb(var(--right) / 0.14); }
.right.s3, .right.s4 { background: rgb(var(--right) / 0.24); }
.right.s5, .right.s6 { background: rgb(var(--right) / 0.34); }
.right.s7, .right.s8 { background: rgb(var(--right) / 0.45); }
.wrong.s1 { background: rgb(var(--wrong) / 0.14); } .wrong.s2 { background: rgb(var(--wrong) / 0.24); }
.wrong.s3 { background: rgb(var(--wrong) / 0.34); } .wrong.s4, .wrong.s5, .wrong.s6, .wrong.s7,
.wrong.s8 { background: rgb(var(--wrong) / 0.5); }
.samples { list-style: none; margin: 0; padding: 0; display: grid; gap: 12px;
  grid-template-columns: repeat(auto-fill, minmax(140px, 1fr)); }
.samples.texts { grid-template-columns: repeat(auto-fill, minmax(min(100%, 300px), 1fr)); }
.samples li { background: var(--card); border-radius: 8px; padding: 10px; overflow-wrap: anywhere; }
.samples img { display: block; width: 100%; max-width: 160px; aspect-ratio: 1; object-fit: contain; margin: 0 auto 8px;
  image-rendering: pixelated; border-radius: 4px; }
.samples p { margin: 0; font-size: 13px; }
.samples blockquote { margin: 0 0 8px; font-size: 14px; }
.good { color: var(--good); } .bad { color: var(--bad); }
.plan { list-style: none; display: flex; flex-wrap: wrap; gap: 8px 28px; margin: 0; padding: 0; }
.plan > li { position: relative; background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: 10px 14px; min-width: min(100%, 210px); }
.plan > li + li::before { content: "→"; position: absolute; left: -23px; top: 50%; transform: translateY(-50%);
  color: var(--faint); }
.plan ul { list-style: none; margin: 0; padding: 0; font-size: 14px; }
.plan .note { overflow-wrap: anywhere; margin-bottom: 4px; max-width: 300px; }
details summary { cursor: pointer; font-size: 18px; font-weight: 600; }
pre { background: var(--card); border-radius: 8px; padding: 12px; overflow-x: auto; font-size: 13px; }
@media (max-width: 480px) { .bar { width: 64px; } th, td { padding-right: 10px; }
  .plan { flex-direction: column; gap: 26px; }
  .plan > li + li::before { content: "↓"; left: 20px; top: -13px; } .cards { grid-template-columns: 1fr 1fr; } }
@media print { section { break-inside: avoid; } }
`;
