// docs/commands.md: the help of every command, as the command line's own table has it.

import type { Command } from 'commander';
import { createProgram } from '../cli/program.ts';

/** The document. */
export async function commandsDocument(): Promise<string> {
  const { commands } = await createProgram();
  const parts = commands.map((command) => `## asteroid ${command.name()}\n\n${sectionOf(command)}`);
  const links = commands.map((command) => `[${command.name()}](#asteroid-${command.name()})`);
  return [
    '# Commands',
    '',
    'Every command with its flags; `asteroid COMMAND --help` prints the same. Made from the command line itself:',
    'after a change, `npm run build && node dist/testing/generate-commands-doc.js`.',
    '',
    `${links.join(' · ')}`,
    '',
    parts.join('\n\n'),
    '',
  ].join('\n');
}

/** The help as a program prints it, without colours and at one width. */
function sectionOf(command: Command): string {
  let help = '';
  command.configureOutput({
    writeOut: (text) => {
      help += text;
    },
    getOutHelpWidth: () => 100,
    getOutHasColors: () => false,
  });
  command.outputHelp();
  return `\`\`\`text\n${help.replace(/[ \t]+$/gm, '').trim()}\n\`\`\``;
}
