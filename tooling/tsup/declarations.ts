// How the declarations of every package are made. `tooling/checks/tree.test.ts` checks types once,
// over everything, so a build checks none. It reads what other packages declare from their `dist`,
// which turbo builds first, and not from their sources.

const FASTER = { noCheck: true, customConditions: [] };

/**
 * The `dts` option of tsup. `banner` is the beginning of each declaration file. By default it
 * includes the types of `using`, so that a project's own `lib` need not name them.
 */
export function declarations(banner = '/// <reference lib="esnext.disposable" />') {
  return { banner, compilerOptions: FASTER };
}
