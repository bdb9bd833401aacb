// The packages' declarations as a user's TypeScript reads them. Each of their files is checked,
// in an ES2022 project with the types of its environment and nothing else.
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import ts from 'typescript';
import { ROOT } from './workspace.ts';

/** The types that a project for pages and one for Node bring. Neither has those of the other. */
const ENVIRONMENTS = {
  browser: {
    lib: ['lib.es2022.d.ts', 'lib.dom.d.ts'],
    types: [],
    module: ts.ModuleKind.ESNext,
    moduleResolution: ts.ModuleResolutionKind.Bundler,
    customConditions: ['browser'],
  },
  node: {
    lib: ['lib.es2022.d.ts'],
    types: ['node'],
    typeRoots: [join(ROOT, 'node_modules/@types')],
    module: ts.ModuleKind.NodeNext,
    moduleResolution: ts.ModuleResolutionKind.NodeNext,
  },
} satisfies Record<string, ts.CompilerOptions>;

export type Environment = keyof typeof ENVIRONMENTS;

/**
 * What this clone contributes to a program: TypeScript's own files and Node's types. They are
 * parsed once and not checked.
 */
const ours = new Map<string, ts.SourceFile | undefined>();
const isOurs = (path: string) => path.startsWith(`${ROOT.replaceAll('\\', '/')}/`);
/** Those of packages from outside are checked among the long tests. zod's take two seconds. */
const others =
  process.env.SHARDWEAVE_LONG === '1' ? '/node_modules/@shardweave/' : '/node_modules/';
const isOfAnother = (path: string, name: string) =>
  path.includes(others) && !path.includes(`/node_modules/${name}/`);

export interface Imported {
  /** The package whose declarations are checked. */
  readonly name: string;
  /** Its entries that are imported, such as `@shardweave/nn/flat`. Default: the main one. */
  readonly specifiers?: readonly string[];
}

/**
 * The type errors of a file in `project` that imports entries of a package, and of the files that
 * it imports. Those of other packages are left out: each of ours is checked in its own project.
 * @param text what follows these imports
 */
export function typeErrors(
  project: string,
  { name, specifiers = [name] }: Imported,
  environment: Environment,
  text = '',
): readonly string[] {
  const user = join(project, `${environment}-user.ts`);
  const imports = specifiers.map((entry, index) => `export * as entry${index} from '${entry}';\n`);
  writeFileSync(user, imports.join('') + text);
  const options: ts.CompilerOptions = {
    ...ENVIRONMENTS[environment],
    target: ts.ScriptTarget.ES2022,
    strict: true,
    noEmit: true,
    skipLibCheck: false,
  };
  const host = ts.createCompilerHost(options);
  const { getSourceFile } = host;
  host.getSourceFile = (path, ...rest) => {
    if (!isOurs(path)) {
      return getSourceFile(path, ...rest);
    }
    const key = `${environment} ${path}`;
    if (!ours.has(key)) {
      ours.set(key, getSourceFile(path, ...rest));
    }
    return ours.get(key);
  };
  const program = ts.createProgram([user], options, host);
  const diagnostics = [
    ...program.getOptionsDiagnostics(),
    ...program.getGlobalDiagnostics(),
    ...program
      .getSourceFiles()
      .filter(({ fileName }) => !isOurs(fileName) && !isOfAnother(fileName, name))
      .flatMap((file) => [
        ...program.getSyntacticDiagnostics(file),
        ...program.getSemanticDiagnostics(file),
      ]),
  ];
  return diagnostics.map(({ file, start, messageText }) => {
    const text = ts.flattenDiagnosticMessageText(messageText, ' ');
    if (file === undefined || start === undefined) {
      return text;
    }
    const { line } = file.getLineAndCharacterOfPosition(start);
    return `${file.fileName.split('/node_modules/').at(-1)}:${line + 1}: ${text}`;
  });
}
