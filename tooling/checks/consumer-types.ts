// The packages' declarations as a user's TypeScript reads them. Every declaration file is checked,
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

/**
 * The type errors of a file in `project` that imports all `specifiers`, and of the files that it
 * imports.
 * @param text what follows these imports
 */
export function typeErrors(
  project: string,
  specifiers: readonly string[],
  environment: Environment,
  text = '',
): readonly string[] {
  const path = join(project, `${environment}-user.ts`);
  const imports = specifiers.map((name, index) => `export * as entry${index} from '${name}';\n`);
  writeFileSync(path, imports.join('') + text);
  const options: ts.CompilerOptions = {
    ...ENVIRONMENTS[environment],
    target: ts.ScriptTarget.ES2022,
    strict: true,
    noEmit: true,
    skipLibCheck: false,
  };
  const host = ts.createCompilerHost(options);
  const { getSourceFile } = host;
  host.getSourceFile = (name, ...rest) => {
    if (!isOurs(name)) {
      return getSourceFile(name, ...rest);
    }
    const key = `${environment} ${name}`;
    if (!ours.has(key)) {
      ours.set(key, getSourceFile(name, ...rest));
    }
    return ours.get(key);
  };
  const program = ts.createProgram([path], options, host);
  const diagnostics = [
    ...program.getOptionsDiagnostics(),
    ...program.getGlobalDiagnostics(),
    ...program
      .getSourceFiles()
      .filter(({ fileName }) => !isOurs(fileName))
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
