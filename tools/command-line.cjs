// The command's code as a script with V8's code cache; tools/bundle.mjs puts this file next to both. There is a cache for
// each set of flags that commands run with. V8 rejects one of another version of Node.js or of other flags; the script
// is then compiled as it runs.

const { existsSync, readFileSync, writeFileSync } = require('node:fs');
const { createRequire } = require('node:module');
const { join } = require('node:path');
const { pathToFileURL } = require('node:url');
const { cachedDataVersionTag, setFlagsFromString } = require('node:v8');
const vm = require('node:vm');

const path = join(__dirname, 'command-line.script');
const cachePath = join(__dirname, `command-line.${cachedDataVersionTag()}.cache`);

const script = new vm.Script(readFileSync(path, 'latin1'), {
  filename: path,
  cachedData: existsSync(cachePath) ? readFileSync(cachePath) : undefined,
});
const bundled = { exports: {} };
script.runInThisContext()(
  bundled.exports,
  createRequire(path),
  bundled,
  pathToFileURL(path).href,
  (specifier) => import(specifier),
);

/** Whether the code came from the cache. */
exports.isCacheTaken = script.cachedDataRejected === false;

exports.runCommandLine = (words) => bundled.exports.runCommandLine(words);

exports.processes = bundled.exports.processes;

/** Runs a command and writes the cache with what has been compiled since, and what was in it before. */
exports.writeCodeCache = async (words) => {
  // What has not run for a while is kept too; the flag is part of the cache's name.
  setFlagsFromString('--no-flush-bytecode');
  const { exitCode, error } = await exports.runCommandLine(words);
  setFlagsFromString('--flush-bytecode');
  if (exitCode !== 0) throw new Error(`asteroid ${words.join(' ')}: ${error}`);
  writeFileSync(cachePath, script.createCachedData());
};
