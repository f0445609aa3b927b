// `npm run bench -- NAME [OPTIONS]`: runs one benchmark; without a name, lists them.

import { readdirSync } from 'node:fs';

const [name, ...options] = process.argv.slice(2);
const own = new Set(['run', 'engine-stage']);
const names = readdirSync(new URL('.', import.meta.url))
  .flatMap((file) => (file.endsWith('.js') ? [file.slice(0, -3)] : []))
  .filter((each) => !own.has(each));
if (name === undefined || !names.includes(name)) {
  console.error(`Usage: npm run bench -- NAME [OPTIONS], where NAME is one of ${names.join(', ')}.`);
  process.exit(2);
}
const script = new URL(`${name}.js`, import.meta.url);
process.argv.splice(1, process.argv.length - 1, script.pathname, ...options);
await import(script.href);
