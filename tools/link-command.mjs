// Makes `npx asteroid` work in a checkout: npm links the commands of dependencies, not the package's own. Run by `npm
// run build`.

import { chmodSync, existsSync, mkdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));
const bin = join(root, 'node_modules', '.bin');
const target = join('..', '..', 'dist', 'cli', 'main.js');

if (existsSync(join(root, 'node_modules'))) {
  mkdirSync(bin, { recursive: true });
  if (process.platform === 'win32') {
    writeFileSync(join(bin, 'asteroid.cmd'), `@node "%~dp0${target}" %*\r\n`);
  } else {
    chmodSync(join(root, 'dist', 'cli', 'main.js'), 0o755);
    rmSync(join(bin, 'asteroid'), { force: true });
    symlinkSync(target, join(bin, 'asteroid'));
  }
}
