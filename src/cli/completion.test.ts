// `asteroid completion`: every command and flag of the command table, as shells take it.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { test } from 'node:test';
import { createProgram } from './program.ts';

/** What the command prints. */
async function scriptFor(shell: string): Promise<string> {
  const program = await createProgram('completion');
  let text = '';
  const { write } = process.stdout;
  process.stdout.write = (part: string | Uint8Array): boolean => {
    text += String(part);
    return true;
  };
  try {
    await program.parseAsync(['completion', shell], { from: 'user' });
  } finally {
    process.stdout.write = write;
  }
  return text;
}

/** What bash offers for a line that ends with its last word. */
function offered(script: string, ...line: readonly string[]): string[] {
  const words = line.map((word) => `'${word}'`).join(' ');
  const code = `${script}\nCOMP_WORDS=(${words}); COMP_CWORD=${line.length - 1}; _asteroid; echo "\${COMPREPLY[@]}"`;
  const ended = spawnSync('bash', ['--norc', '-c', code], { encoding: 'utf8' });
  assert.equal(ended.stderr, '');
  return ended.stdout.trim().split(/\s+/);
}

test('bash: commands, their flags, and nothing where a file is meant', async () => {
  const script = await scriptFor('bash');
  assert.deepEqual(offered(script, 'asteroid', 'pr'), ['profile', 'predict']);
  assert.deepEqual(offered(script, 'asteroid', 'train', '--lor'), ['--lora']);
  assert.deepEqual(offered(script, 'asteroid', 'export', '--fo'), ['--format']);
  assert.deepEqual(offered(script, 'asteroid', 'train', 'ru'), ['']);
});

for (const shell of ['bash', 'zsh', 'fish'])
  test(`${shell}: all commands and flags`, async () => {
    const script = await scriptFor(shell);
    const { commands } = await createProgram();
    assert.ok(commands.length > 20);
    for (const command of commands)
      for (const { long } of command.options) {
        const name = command.name();
        const flag = String(long);
        const line = script.split('\n').find((text) => {
          if (shell === 'bash') return text.trimStart().startsWith(`${name}) words=`) && ` ${text}`.includes(flag);
          if (shell === 'zsh') return text.trimStart().startsWith(`${name}) flags=`) && text.includes(`'${flag}:`);
          return text.includes(`from ${name}'`) && text.includes(` -l ${flag.slice(2)} `);
        });
        assert.ok(line !== undefined, `${name} ${flag}`);
      }
  });
