// How every package's declarations are made. Types are checked once, over everything, by
// `tooling/checks/tree.test.ts`: a build checks none again, and reads what other packages declare
// from their `dist`, which turbo builds first, and not from their sources.

const FASTER = { noCheck: true, customConditions: [] };

/**
 * The `dts` option of tsup. `banner` begins each declaration file; by default it brings the types
 * of `using`, which a project's own `lib` need not name.
 */
export function declarations(banner = '/// <reference lib="esnext.disposable" />') {
  return { banner, compilerOptions: FASTER };
}
