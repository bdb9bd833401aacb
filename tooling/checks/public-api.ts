// What the packages export, as their users see it: every entry of each `exports`, read by
// TypeScript.
import { join, relative } from 'node:path';
import ts from 'typescript';
import { publicEntries } from '../api-reference/public-entries.mjs';
import { ROOT } from './workspace.ts';

export type PublicExport = {
  readonly place: string;
  readonly isDocumented: boolean;
};

/** The packages' entries and some further files, as one TypeScript program. */
export class PublicApi {
  readonly #program: ts.Program;

  constructor(further: readonly string[]) {
    const { config } = ts.readConfigFile(join(ROOT, 'tsconfig.base.json'), ts.sys.readFile);
    const { options } = ts.parseJsonConfigFileContent(config, ts.sys, ROOT);
    const entries = publicEntries(ROOT).map(({ path }) => path);
    this.#program = ts.createProgram([...entries, ...further], options);
  }

  /** The exports of all entries of a package, each once. */
  exportsOf(folder: string): readonly PublicExport[] {
    const checker = this.#program.getTypeChecker();
    const entries = publicEntries(ROOT).filter((entry) => entry.folder === folder);
    const symbols = entries.flatMap(({ path }) => {
      const module = checker.getSymbolAtLocation(this.#program.getSourceFile(path)!)!;
      return checker
        .getExportsOfModule(module)
        .map((symbol) =>
          symbol.flags & ts.SymbolFlags.Alias ? checker.getAliasedSymbol(symbol) : symbol,
        );
    });
    return [...new Set(symbols)].map((symbol) => ({
      place: placeOf(symbol),
      isDocumented: symbol.getDocumentationComment(undefined).length > 0,
    }));
  }

  /** The type errors of a file, as messages with their line numbers. */
  typeErrors(path: string): readonly string[] {
    const file = this.#program.getSourceFile(path)!;
    const diagnostics = [
      ...this.#program.getSyntacticDiagnostics(file),
      ...this.#program.getSemanticDiagnostics(file),
    ];
    return diagnostics.map(({ start = 0, messageText }) => {
      const { line } = file.getLineAndCharacterOfPosition(start);
      return `line ${line + 1}: ${ts.flattenDiagnosticMessageText(messageText, ' ')}`;
    });
  }
}

/** The place of a declaration, as `path:line name`. */
function placeOf(symbol: ts.Symbol): string {
  const declaration = symbol.declarations![0]!;
  const file = declaration.getSourceFile();
  const { line } = file.getLineAndCharacterOfPosition(declaration.getStart());
  return `${relative(ROOT, file.fileName).replaceAll('\\', '/')}:${line + 1} ${symbol.name}`;
}
