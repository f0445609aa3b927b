// asteroid completion: a script for a shell that completes commands and their flags, made from the command table.

import { Argument, type Command } from 'commander';

const shells = ['bash', 'zsh', 'fish'] as const;
type Shell = (typeof shells)[number];

/** What is completed of one command. */
interface Completed {
  readonly name: string;
  readonly description: string;
  readonly flags: readonly { readonly long: string; readonly description: string; readonly takesValue: boolean }[];
}

/** Adds the command; it completes the others of `program`. */
export function addCompletion(program: Command): Command {
  return program
    .command('completion')
    .description('print what makes a shell complete commands and flags')
    .addArgument(new Argument('<SHELL>', 'which shell').choices(shells))
    .addHelpText(
      'after',
      '\nExamples:\n  $ eval "$(asteroid completion bash)"     # in ~/.bashrc; zsh alike, in ~/.zshrc' +
        '\n  $ asteroid completion fish > ~/.config/fish/completions/asteroid.fish',
    )
    .action((shell: Shell) => {
      process.stdout.write(writers[shell](program.commands.map(completedOf)));
    });
}

function completedOf(command: Command): Completed {
  const flags = command.options.flatMap(({ long, description, required, optional }) =>
    long === undefined || long === null ? [] : [{ long, description, takesValue: required || optional }],
  );
  return { name: command.name(), description: command.description(), flags };
}

const writers: Readonly<Record<Shell, (commands: readonly Completed[]) => string>> = { bash, zsh, fish };

/** After a flag, and where no flag has begun, files: bash's own way (`-o default`). */
function bash(commands: readonly Completed[]): string {
  const cases = commands.map(({ name, flags }) => `    ${name}) words='${flags.map(({ long }) => long).join(' ')}' ;;`);
  return `_asteroid() {
  local words='' current=\${COMP_WORDS[COMP_CWORD]}
  if [ "$COMP_CWORD" -eq 1 ]; then
    words='${commands.map(({ name }) => name).join(' ')}'
  elif [ "\${current#-}" != "$current" ]; then
    case \${COMP_WORDS[1]} in
${cases.join('\n')}
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o default -F _asteroid asteroid
`;
}

function zsh(commands: readonly Completed[]): string {
  const entry = (name: string, description: string): string =>
    quoted(`${name}:${oneLine(description).replaceAll(':', '\\:')}`);
  const cases = commands.map(
    ({ name, flags }) =>
      `    ${name}) flags=(${flags.map(({ long, description }) => entry(long, description)).join(' ')}) ;;`,
  );
  return `#compdef asteroid
_asteroid() {
  local -a commands flags
  if (( CURRENT == 2 )); then
    commands=(${commands.map(({ name, description }) => entry(name, description)).join(' ')})
    _describe command commands
    return
  fi
  case $words[2] in
${cases.join('\n')}
  esac
  if [[ $PREFIX == -* ]]; then _describe flag flags; else _files; fi
}
compdef _asteroid asteroid
`;
}

function fish(commands: readonly Completed[]): string {
  const lines = commands.flatMap(({ name, description, flags }) => [
    `complete -c asteroid -f -n __fish_use_subcommand -a ${name} -d ${quoted(oneLine(description))}`,
    ...flags.map(
      ({ long, description: what, takesValue }) =>
        `complete -c asteroid -n '__fish_seen_subcommand_from ${name}' -l ${long.slice(2)}${takesValue ? ' -r' : ''} ` +
        `-d ${quoted(oneLine(what))}`,
    ),
  ]);
  return `${lines.join('\n')}\n`;
}

/** A text as one word of a shell. */
function quoted(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

function oneLine(text: string): string {
  return text.replace(/\s+/g, ' ').trim();
}
