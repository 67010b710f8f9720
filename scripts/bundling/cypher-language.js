// Neo4j's language support for Cypher: colours, completion, and errors of the grammar.
export { CypherLanguageService } from "@neo4j-cypher/language-support";
