// Writes docs/commands.md. Run it after a change of a command:
// npm run build && node dist/testing/generate-commands-doc.js

import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { commandsDocument } from './commands-doc.ts';
import { repository } from './source-files.ts';

writeFileSync(join(repository, 'docs', 'commands.md'), await commandsDocument());
