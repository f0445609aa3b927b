// The table of which folder builds on which, and the checks over it. It is the single source of the import directions:
// the checks run as a test over all of src/, and the linter reads biome.imports.json, which is derived from it here.
// docs/architecture.md explains it.

/** What a folder of src/ may use. */
export interface FolderRule {
  /** The folders it builds on. It may import these, and whatever these build on. */
  readonly on: readonly string[];
  /** Single files of other folders, relative to src/, that it may import besides. */
  readonly files?: readonly string[];
  /**
   * 'pure': values in, values out; no `node:*`, clock, timer, console or ambient randomness. 'portable': no `node:*`.
   */
  readonly kind: 'pure' | 'portable' | 'host';
}

/**
 * The rooms. A file is in the room whose name is the longest beginning of its path. 'leaf' stands for the files
 * directly in src/, but for index.ts, node.ts and browser.ts: these are 'entry', and nothing imports them.
 */
export const folders: Readonly<Record<string, FolderRule>> = {
  leaf: { on: [], kind: 'portable' },
  graph: { on: ['leaf'], kind: 'pure' },
  autodiff: { on: ['graph'], kind: 'pure' },
  lowering: { on: ['autodiff'], kind: 'pure' },
  engine: { on: ['lowering'], kind: 'portable' },
  'engine/node': { on: ['engine'], kind: 'host' },
  models: { on: ['graph'], kind: 'portable' },
  training: { on: ['graph'], kind: 'pure' },
  cluster: { on: ['leaf'], kind: 'pure' },
  schedule: { on: ['cluster'], kind: 'pure' },
  simulator: { on: ['schedule'], kind: 'pure' },
  planner: { on: ['simulator'], kind: 'pure' },
  transport: { on: ['leaf'], files: ['graph/tensor.ts'], kind: 'portable' },
  'transport/node': { on: ['transport'], kind: 'host' },
  storage: { on: ['training'], kind: 'portable' },
  'storage/node': { on: ['storage'], kind: 'host' },
  'runtime/protocol': { on: ['planner', 'training', 'transport'], kind: 'portable' },
  'runtime/device': { on: ['runtime/protocol', 'engine', 'training'], kind: 'portable' },
  'runtime/device/measure': { on: ['runtime/device'], kind: 'portable' },
  'runtime/knowledge': { on: ['runtime/device'], kind: 'portable' },
  'runtime/coordinator': { on: ['runtime/knowledge'], kind: 'portable' },
  'runtime/worker': { on: ['runtime/knowledge', 'runtime/device/measure'], kind: 'portable' },
  'runtime/run': { on: ['runtime/coordinator', 'models', 'storage'], kind: 'portable' },
  'runtime/host': {
    on: ['runtime/run', 'runtime/worker', 'engine/node', 'transport/node', 'storage/node'],
    kind: 'host',
  },
  rehearsal: { on: ['runtime/host'], kind: 'host' },
  lab: { on: ['cluster', 'storage/node'], kind: 'host' },
  tab: { on: ['runtime/worker'], kind: 'portable' },
  'tab/page': { on: ['tab'], kind: 'portable' },
  window: { on: ['runtime/protocol'], kind: 'portable' },
  'window/page': { on: ['window'], kind: 'portable' },
  'window/server': { on: ['window', 'runtime/host'], kind: 'host' },
  cli: { on: ['rehearsal', 'lab', 'window/server'], kind: 'host' },
  web: { on: ['rehearsal'], kind: 'host' },
  entry: { on: ['rehearsal'], kind: 'host' },
  testing: { on: ['cli', 'web', 'entry', 'tab'], kind: 'host' },
  fuzzing: { on: ['testing'], kind: 'host' },
};

/** Rooms with rooms inside, the innermost first. */
const nested: readonly string[] = Object.keys(folders)
  .filter((name) => name.includes('/'))
  .sort((a, b) => b.length - a.length);

const entryFiles: readonly string[] = ['index.ts', 'node.ts', 'browser.ts'];
const ambientNames: readonly string[] = [
  ...[
    'Buffer',
    'Date',
    'clearInterval',
    'clearTimeout',
    'console',
    'crypto',
    'fetch',
    'performance',
    'process',
    'queueMicrotask',
  ],
  ...['setImmediate', 'setInterval', 'setTimeout'],
];

/** The room of a file, given relative to src/. */
export function folderOf(path: string): string {
  const room = nested.find((name) => path.startsWith(`${name}/`));
  if (room !== undefined) return room;
  const slash = path.indexOf('/');
  if (slash >= 0) return path.slice(0, slash);
  return entryFiles.includes(path) ? 'entry' : 'leaf';
}

/** Everything that `folder` may import, itself included. */
export function reachable(folder: string): ReadonlySet<string> {
  const found = new Set<string>([folder]);
  for (const name of found) for (const next of folders[name]?.on ?? []) found.add(next);
  return found;
}

/**
 * One sentence for each broken rule. `sources` maps paths relative to src/, such as 'graph/graph.ts', to their text;
 * tests are exempt.
 */
export function violations(sources: ReadonlyMap<string, string>): string[] {
  const edges = new Map<string, string[]>();
  const found: string[] = [];
  for (const [path, source] of sources) {
    if (path.endsWith('.test.ts')) continue;
    const folder = folderOf(path);
    const rule = folders[folder];
    if (rule === undefined) {
      found.push(`${path}: the folder ${folder} is not in the table of testing/architecture.ts`);
      continue;
    }
    const specifiers = importsOf(source);
    const targets = specifiers
      .filter((specifier) => specifier.startsWith('.'))
      .map((specifier) => resolve(path, specifier));
    edges.set(path, targets);
    for (const target of targets) {
      const allowed = reachable(folder).has(folderOf(target)) || rule.files?.includes(target);
      if (!allowed) found.push(`${path} imports ${target}: ${folder} builds on ${rule.on.join(', ') || 'nothing'}`);
    }
    if (rule.kind !== 'host')
      found.push(
        ...specifiers.filter(isNodeModule).map((name) => `${path} imports ${name}: ${folder} is ${rule.kind}`),
      );
    if (rule.kind === 'pure')
      found.push(...ambientUses(source).map((name) => `${path} uses ${name}: ${folder} is pure`));
  }
  return [...found, ...cycles(edges)];
}

/** The overrides of biome.imports.json: the same table, told to the linter. */
export function lintOverrides(): unknown[] {
  const pure = Object.keys(folders).filter((folder) => folders[folder]?.kind === 'pure');
  const deniedGlobals = Object.fromEntries(
    ambientNames.map((name) => [name, 'This folder is pure: take it as a parameter.']),
  );
  const ambient = override(pure.flatMap(globsOf), {
    noRestrictedGlobals: { level: 'error', options: { deniedGlobals } },
  });
  const imports = Object.entries(folders).map(([folder, rule]) => {
    const reach = reachable(folder);
    const others = Object.keys(folders).filter((other) => !reach.has(other) && other !== 'leaf' && other !== 'entry');
    const group = others
      .map((other) => (hasRooms(other) ? `**/${other}/*` : `**/${other}/**`))
      .concat((rule.files ?? []).map((file) => `!**/${file}`));
    if (folder !== 'testing') group.push(...entryFiles.map((file) => `**/${file}`), '!**/operators/index.ts');
    if (rule.kind !== 'host') group.push('node:*', 'node:*/**');
    const floor = rule.on.join(', ') || 'nothing';
    const message = `${folder} is ${rule.kind} and builds on ${floor}: see src/testing/architecture.ts.`;
    return override(globsOf(folder), {
      noRestrictedImports: { level: 'error', options: { patterns: [{ group, message }] } },
    });
  });
  return [ambient, ...imports];
}

/** Whether a room has rooms inside it. */
function hasRooms(folder: string): boolean {
  return nested.some((name) => name.startsWith(`${folder}/`));
}

function override(includes: readonly string[], style: object): unknown {
  return { includes: [...includes, '!**/*.test.ts'], linter: { rules: { style } } };
}

/** The files of a room, without those of rooms inside it. */
function globsOf(folder: string): string[] {
  const inside = nested.filter((name) => name.startsWith(`${folder}/`)).map((name) => `!src/${name}/**`);
  if (inside.length > 0) return [`src/${folder}/**`, ...inside];
  if (folder === 'leaf') return ['src/*.ts', ...entryFiles.map((file) => `!src/${file}`)];
  return folder === 'entry' ? entryFiles.map((file) => `src/${file}`) : [`src/${folder}/**`];
}

/** Module specifiers of static and dynamic imports and re-exports, type-only ones too. */
function importsOf(source: string): string[] {
  const code = source.replace(/^\s*(\/\/.*|\/?\*.*)$/gm, '');
  const statement =
    /^\s*(?:import|export)\s(?:[^;'"]*?\sfrom\s)?\s*['"]([^'"]+)['"]|\bimport\(\s*['"]([^'"]+)['"]\s*\)/gm;
  return [...code.matchAll(statement)].map((match) => match[1] ?? match[2] ?? '');
}

function isNodeModule(specifier: string): boolean {
  return specifier.startsWith('node:');
}

/** Ambient names used as values. Comments and string literals are blanked first. */
function ambientUses(source: string): string[] {
  const code = source.replace(/\/\*[\s\S]*?\*\/|\/\/.*|'(?:[^'\\\n]|\\.)*'/g, ' ');
  const use = new RegExp(`(?<![.\\w$])(?:Math\\.random\\b|(?:${ambientNames.join('|')})(?=\\s*[.(]))`, 'g');
  return [...new Set(code.match(use) ?? [])];
}

function resolve(from: string, specifier: string): string {
  const parts = from.split('/').slice(0, -1);
  for (const part of specifier.split('/')) {
    if (part === '..') parts.pop();
    else if (part !== '.') parts.push(part);
  }
  return parts.join('/');
}

/** Each import circle once, found by depth-first search: a file met again while it is still open closes one. */
function cycles(edges: ReadonlyMap<string, readonly string[]>): string[] {
  const found: string[] = [];
  const done = new Set<string>();
  const visit = (path: string, open: readonly string[]): void => {
    const start = open.indexOf(path);
    if (start >= 0) found.push(`imports run in a circle: ${[...open.slice(start), path].join(' -> ')}`);
    if (start >= 0 || done.has(path)) return;
    for (const target of edges.get(path) ?? []) visit(target, [...open, path]);
    done.add(path);
  };
  for (const path of edges.keys()) visit(path, []);
  return found;
}
