// Modules of Node.js where the code runs on it, without an import that a browser could not resolve. For what has a
// portable form, too, and is only faster there: checksums, hashes, memory that is not cleared.

interface MaybeNode {
  readonly process?: { readonly getBuiltinModule?: (name: string) => object | undefined };
}

/** A module of Node.js such as "node:zlib"; undefined elsewhere. `Module` is its type. */
export function builtinModule<Module extends object>(name: string): Module | undefined {
  return (globalThis as MaybeNode).process?.getBuiltinModule?.(name) as Module | undefined;
}
