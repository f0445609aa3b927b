// Writes a CSV of texts and their classes from files of fortunes, whose texts lie between lines of "%":
// node fortunes.mjs FOLDER CLASS… > texts.csv. As many texts of each class as the smallest has, in turns.

import { readFileSync } from 'node:fs';
import { join } from 'node:path';

const [folder, ...classes] = process.argv.slice(2);
const texts = classes.map((name) =>
  readFileSync(join(folder, name), 'utf8')
    .split(/^%\n/m)
    .map((text) => text.replace(/\s+/g, ' ').trim())
    .filter((text) => text !== ''),
);
const count = Math.min(...texts.map(({ length }) => length));
console.log('text,label');
for (let index = 0; index < count; index++)
  for (const [at, name] of classes.entries()) console.log(`"${texts[at][index].replaceAll('"', '""')}",${name}`);
