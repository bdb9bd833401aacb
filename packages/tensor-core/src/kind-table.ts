// Looks up what a kernel does by its kind. A kind without an entry is refused here, because it
// would end the device: WebAssembly traps at it, and a shader of it does not compile.

import { OptionError } from './errors.js';
import { shown } from './options.js';

/**
 * Returns the entry of `kind`.
 * @throws {OptionError} where the table has none
 */
export function ofKind<Value>(
  kernel: string,
  table: Readonly<Record<string, Value>>,
  kind: string,
): Value {
  if (!Object.hasOwn(table, kind)) {
    throw new OptionError(
      `${kernel}: expected a kind among ${Object.keys(table).join(', ')}, got ${shown(kind)}.`,
    );
  }
  return table[kind]!;
}
