// The files of the pages, as tools/bundle.mjs made them, and of the engine that browsers compute with: a fixed table.
// What is asked for is looked up in it, and never is a path.

import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { gzip } from 'node:zlib';
import { RunError } from '../../errors.ts';

/**
 * What a file may do where it is the page, or the script of a thread: 'look' is the window, 'join' the page on which a
 * browser becomes a device and its thread for links, and 'compute' the thread of the engine, which alone may compile
 * WebAssembly.
 */
export type FilePolicy = 'look' | 'join' | 'compute';

export interface PageFile {
  readonly type: string;
  readonly policy: FilePolicy;
  /** Rejects with RunError where the file is not there. */
  read(): Promise<FileBytes>;
}

/** What a file holds. */
export interface FileBytes {
  readonly plain: Uint8Array;
  /** Of megabytes, which may take longer than other files, and which browsers keep. */
  readonly large?: {
    readonly gzip: Uint8Array;
    /** Another one for other bytes. */
    readonly tag: string;
  };
}

const [html, script, style] = ['text/html', 'text/javascript', 'text/css'].map((type) => `${type}; charset=utf-8`);

/** By the path of a request: the file below dist/, its type, and what it may do. */
const built: Readonly<Record<string, readonly [path: string, type: string | undefined, policy: FilePolicy]>> = {
  '/': ['window/page/index.html', html, 'look'],
  '/page.js': ['window/page/page.js', script, 'look'],
  '/page.css': ['window/page/page.css', style, 'look'],
  '/icon.svg': ['window/page/icon.svg', 'image/svg+xml', 'look'],
  '/join': ['tab/page/join.html', html, 'join'],
  '/join.js': ['tab/page/join.js', script, 'join'],
  '/join.css': ['tab/page/join.css', style, 'join'],
  '/compute.js': ['tab/page/compute.js', script, 'join'],
  '/engine.js': ['tab/page/engine.js', script, 'compute'],
};

/** The files of the package onnxruntime-web: the build for processors, and the larger one for graphics chips. */
const engine: Readonly<Record<string, readonly [name: string, type: string | undefined]>> = {
  '/ort.js': ['ort.wasm.bundle.min.mjs', script],
  '/ort.wasm': ['ort-wasm-simd-threaded.wasm', 'application/wasm'],
  '/ort-gpu.js': ['ort.webgpu.bundle.min.mjs', script],
  '/ort-gpu.wasm': ['ort-wasm-simd-threaded.asyncify.wasm', 'application/wasm'],
};

/** By the path of a request. Throws RunError where the package was not built. */
export function readPageFiles(): ReadonlyMap<string, PageFile> {
  const own = Object.entries(built).map(([path, [name, type = '', policy]]): [string, PageFile] => {
    const plain = readBuilt(name);
    return [path, { type, policy, read: async () => ({ plain }) }];
  });
  const packaged = Object.entries(engine).map(([path, [name, type = '']]): [string, PageFile] => {
    let bytes: Promise<FileBytes> | undefined;
    const read = (): Promise<FileBytes> => {
      bytes ??= readPackaged(name);
      return bytes;
    };
    return [path, { type, policy: 'compute', read }];
  });
  return new Map([...own, ...packaged]);
}

function readBuilt(name: string): Uint8Array {
  try {
    return readFileSync(new URL(`../../${name}`, import.meta.url));
  } catch (error) {
    throw new RunError(`The window's page is not there (${(error as NodeJS.ErrnoException).code}): npm run build.`);
  }
}

/** Why no browser can join as a device, and the fix; undefined: they can. */
export function browserEngineAbsence(): string | undefined {
  try {
    createRequire(import.meta.url).resolve('onnxruntime-web');
    return undefined;
  } catch {
    return 'a browser needs the package onnxruntime-web to join: run "npm install onnxruntime-web" where asteroid is';
  }
}

/** Read and compressed when the first browser asks for it. */
async function readPackaged(name: string): Promise<FileBytes> {
  try {
    const folder = dirname(createRequire(import.meta.url).resolve('onnxruntime-web'));
    const plain = await readFile(join(folder, name));
    const tag = `"${createHash('sha256').update(plain).digest('base64url')}"`;
    return { plain, large: { gzip: await promisify(gzip)(plain), tag } };
  } catch (error) {
    throw new RunError(
      `The engine for browsers is not there (${(error as NodeJS.ErrnoException).code}): npm install onnxruntime-web.`,
    );
  }
}
