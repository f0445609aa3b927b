// npm run reproduce: writes docs/reproduction.md and its charts. With names of experiments (experiments.ts) as
// arguments, prints only their sections.

import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type Experiment, readTestbeds, type Section } from './experiment.ts';
import { experiments } from './experiments.ts';

const root = process.cwd();

const opening = `# The papers' tables, reproduced

Written by \`npm run reproduce\`; do not edit. Each section compares a published table or figure with the results \
of our planners and simulator, by the rules of the simulated world
([simulator.md](simulator.md)), for devices that are models fitted to the numbers in the first section and to nothing \
else. Planning is for plain SGD; replicas of batch normalization are
allowed, as in the papers. Differences of more than 15 % are explained.
`;

/** The section's text with links to its charts, which are in a folder next to the page. */
function withCharts({ title, text }: Section): string {
  return `## ${title}\n\n${text.replaceAll(/!\[([^\]]*)\]\(([\w-]+)\)/g, '![$1](reproduction/$2.svg)')}\n`;
}

async function make(names: readonly string[], folder: string): Promise<string[]> {
  const parts: string[] = [];
  for (const name of names) {
    const before = process.cpuUsage();
    const section = await (experiments[name] as Experiment)(readTestbeds(root));
    for (const { name: chart, svg } of section.charts) writeFileSync(join(folder, `${chart}.svg`), svg);
    parts.push(withCharts(section));
    const { user, system } = process.cpuUsage(before);
    process.stderr.write(`${name}: ${((user + system) / 1e6).toFixed(1)} s of CPU\n`);
  }
  return parts;
}

const asked = process.argv.slice(2);
const unknown = asked.find((name) => !Object.hasOwn(experiments, name));
if (unknown !== undefined) {
  process.stderr.write(`There is no experiment "${unknown}"; use some of ${Object.keys(experiments).join(', ')}.\n`);
  process.exitCode = 2;
} else {
  const folder = join(root, 'docs', 'reproduction');
  if (asked.length === 0) rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder, { recursive: true });
  const parts = await make(asked.length === 0 ? Object.keys(experiments) : asked, folder);
  if (asked.length === 0) writeFileSync(join(root, 'docs', 'reproduction.md'), [opening, ...parts].join('\n'));
  else process.stdout.write(parts.join('\n'));
}
