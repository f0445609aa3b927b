// Paths of files as texts, the same on every platform: parts between slashes. On Windows, which takes slashes too, the
// backslashes of an absolute path (C:\runs, \\host\runs) separate parts as well.

/** Where the last part begins. */
function lastPart(path: string): number {
  const isWindows = /^(?:[A-Za-z]:)?\\/u.test(path);
  return Math.max(path.lastIndexOf('/'), isWindows ? path.lastIndexOf('\\') : -1) + 1;
}

function withoutEnd(path: string): string {
  return path.length > 1 ? path.replace(/(?!^)\/+$/u, '') : path;
}

/** The folder of a path: "." for a name alone, "/" for what is in the root. */
export function dirname(path: string): string {
  const trimmed = withoutEnd(path);
  const start = lastPart(trimmed);
  if (start === 0) return '.';
  return start === 1 ? trimmed.slice(0, 1) : trimmed.slice(0, start - 1);
}

/** The last part of a path. */
export function basename(path: string): string {
  const trimmed = withoutEnd(path);
  return trimmed.slice(lastPart(trimmed));
}

/** Parts one below the other; the first may be an absolute path, "." or empty. */
export function join(...parts: readonly string[]): string {
  const [first = '', ...rest] = parts.filter((part) => part !== '');
  return rest.reduce((path, part) => {
    const inside = part.replace(/^\.\//u, '');
    if (path === '.') return inside;
    return path.endsWith('/') ? `${path}${inside}` : `${path}/${inside}`;
  }, first);
}
