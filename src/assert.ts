// Checks of our own invariants. A failure is a bug in Asteroid, never a user error (those are in errors.ts).

/** Throws when `condition` is false. */
export function assert(condition: unknown, message: string): asserts condition {
  if (!condition) throw new Error(`Asteroid made a mistake: ${message}. Please report this.`);
}

/** Returns `value`; throws if it is undefined or null. For indices and look-ups known to succeed. */
export function defined<T>(value: T | undefined | null, what: string): T {
  assert(value !== undefined && value !== null, `${what} is missing`);
  return value;
}

/** For the default branch of an exhaustive switch: a missing case does not compile. */
export function unreachable(value: never): never {
  throw new Error(`Asteroid made a mistake: unexpected ${JSON.stringify(value)}. Please report this.`);
}
