#include "data/builtin_corpus.h"

#include <array>
#include <string_view>
#include <vector>

#include "data/sample_order.h"

namespace osdn::data {
namespace builtin_corpus_detail {

using Words = std::vector<std::string_view>;

const Words kNames = {
    "Ada",   "Anton", "Bela",  "Boris",  "Clara", "Carl",  "Dora",  "David", "Edda",  "Emil", "Fay",  "Frank",
    "Gerda", "Georg", "Hanna", "Hugo",   "Ines",  "Ivan",  "Jana",  "Jonas", "Karin", "Kurt", "Lena", "Leo",
    "Mara",  "Milo",  "Nora",  "Nils",   "Olga",  "Oscar", "Paula", "Peter", "Rosa",  "Ralf", "Sara", "Simon",
    "Tilda", "Theo",  "Vera",  "Victor", "Wanda", "Willi", "Yara",  "Yuri",  "Zoe",   "Zeno", "Irma", "Otto"};
const Words kTowns = {"Tolver",   "Brackwater", "Ashford",   "Millhaven", "Stonebridge", "Redcliff",
                      "Oakdale",  "Fairport",   "Westley",   "Northam",   "Elmwood",     "Harwick",
                      "Glenmore", "Kingsley",   "Lowfield",  "Marston",   "Newbury",     "Oldtown",
                      "Penrith",  "Ravenhill",  "Saltmarsh", "Thornby",   "Upwell",      "Whitby"};
const Words kJobs = {"baker",  "teacher", "doctor", "farmer", "painter",  "sailor",  "carpenter", "judge",
                     "pilot",  "tailor",  "miner",  "writer", "gardener", "smith",   "nurse",     "lawyer",
                     "fisher", "printer", "singer", "potter", "weaver",   "plumber", "butcher",   "clerk"};
const Words kColours = {"red",   "blue", "green", "yellow", "white",  "black",
                        "brown", "grey", "pink",  "purple", "golden", "silver"};
const Words kAnimals = {"dog",    "cat",  "horse",  "goat",   "parrot", "rabbit",
                        "turtle", "crow", "donkey", "ferret", "goose",  "pony"};
const Words kFoods = {"bread",  "cheese", "soup",   "apples",  "rice",    "fish",   "beans",     "honey",
                      "plums",  "eggs",   "pears",  "carrots", "noodles", "onions", "grapes",    "walnuts",
                      "butter", "cake",   "olives", "figs",    "peas",    "melon",  "mushrooms", "cabbage"};
const Words kInstruments = {"piano", "violin",  "flute", "drum",  "guitar",
                            "harp",  "trumpet", "cello", "organ", "banjo"};
const Words kObjects = {"key",    "lamp", "coin", "map",    "book",   "ring",  "clock",  "letter",
                        "mirror", "rope", "bell", "candle", "basket", "knife", "pencil", "compass"};
const Words kPlaces = {"kitchen", "cellar", "garden", "attic", "library", "barn",   "workshop", "stable",
                       "chapel",  "tower",  "school", "mill",  "harbor",  "market", "inn",      "station"};
const Words kDays = {"Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"};
const Words kNumbers = {"11", "12", "14", "17", "19", "23", "26", "28", "31", "34", "37",
                        "41", "43", "46", "48", "52", "53", "57", "59", "61", "64", "67",
                        "68", "71", "73", "76", "79", "82", "85", "88", "91", "97"};

/// One kind of fact. {n}: the person, {v}: the value, {o}: the value before.
struct FactKind {
  const Words* values;
  std::array<std::string_view, 4> statements;
  std::array<std::string_view, 3> reminders;
  std::array<std::string_view, 2> questions;
  std::array<std::string_view, 2> answers;
  std::string_view change;  // empty: it never changes
};

const std::vector<FactKind> kFactKinds = {
    {&kTowns,
     {"{n} lives in {v}.", "The home of {n} is in {v}.", "{n} has a small house in {v}.",
      "{n} grew up in {v} and still lives there."},
     {"It is from {v} that {n} comes every morning.", "Letters for {n} are sent to {v}.",
      "In {v} everybody knows {n}."},
     {"Where does {n} live?", "In which town is the home of {n}?"},
     {"{n} lives in {v}.", "In {v}."},
     "Then {n} left {o} and moved to {v}."},
    {&kJobs,
     {"{n} works as a {v}.", "{n} is a {v}.", "For many years {n} has been a {v}.",
      "{n} learned the trade of a {v}."},
     {"As a {v}, {n} gets up early.", "People who need a {v} ask for {n}.",
      "The best {v} around here is {n}."},
     {"What is the work of {n}?", "What does {n} do for a living?"},
     {"{n} is a {v}.", "{n} works as a {v}."},
     "After that {n} stopped working as a {o} and became a {v}."},
    {&kColours,
     {"{n} wears a {v} coat.", "The coat of {n} is {v}.", "{n} likes {v} best of all colours.",
      "{n} bought a {v} coat."},
     {"You can see {n} from far away because of the {v} coat.", "Nobody else has a {v} coat like {n}.",
      "The {v} coat hanging by the door belongs to {n}."},
     {"Which colour is the coat of {n}?", "What colour does {n} wear?"},
     {"The coat of {n} is {v}.", "It is {v}."},
     "Later {n} gave the {o} coat away and bought a {v} one."},
    {&kAnimals,
     {"{n} has a {v}.", "{n} keeps a {v} at home.", "The animal of {n} is a {v}.",
      "{n} found a young {v} and kept it."},
     {"Every evening {n} feeds the {v}.", "The {v} follows {n} to the door.",
      "Children ask {n} about the {v}."},
     {"Which animal does {n} keep?", "What animal lives with {n}?"},
     {"{n} has a {v}.", "It is a {v}."},
     ""},
    {&kFoods,
     {"{n} likes to eat {v}.", "For supper {n} wants {v}.", "The favourite food of {n} is {v}.",
      "{n} could eat {v} every day."},
     {"Guests bring {v} when they visit {n}.", "When {n} is hungry there must be {v}.",
      "On the table of {n} there is always some {v}."},
     {"What does {n} like to eat?", "Which food does {n} like best?"},
     {"{n} likes {v}.", "The favourite food of {n} is {v}."},
     ""},
    {&kInstruments,
     {"{n} plays the {v}.", "At night {n} plays the {v}.", "{n} is learning the {v}.",
      "The father of {n} taught {n} the {v}."},
     {"The sound of the {v} tells the street that {n} is home.", "{n} takes good care of the {v}.",
      "Once a week {n} gives lessons on the {v}."},
     {"Which instrument does {n} play?", "What does {n} play?"},
     {"{n} plays the {v}.", "The {v}."},
     ""},
    {&kNumbers,
     {"{n} lives at number {v}.", "The house of {n} has the number {v}.", "Number {v} is the house of {n}.",
      "On the door of {n} is the number {v}."},
     {"If you look for {n}, knock at number {v}.", "The postman leaves the letters of {n} at number {v}.",
      "There is a light at number {v}, so {n} must be awake."},
     {"What is the house number of {n}?", "At which number does {n} live?"},
     {"The number of {n} is {v}.", "It is {v}."},
     ""},
    {&kPlaces,
     {"{n} put the old {x} in the {v}.", "The {x} of {n} lies in the {v}.", "{n} keeps the {x} in the {v}.",
      "{n} hid the {x} in the {v}."},
     {"Whoever needs the {x} of {n} goes to the {v}.", "In the {v} lies the {x} that belongs to {n}.",
      "{n} thinks that the {x} is safe in the {v}."},
     {"Where is the {x} of {n}?", "Where did {n} put the {x}?"},
     {"The {x} of {n} is in the {v}.", "It is in the {v}."},
     "Then {n} took the {x} from the {o} and carried it to the {v}."},
    {&kDays,
     {"{n} goes to market on {v}.", "On {v} {n} is always at the market.", "The market day of {n} is {v}.",
      "{n} sells things on {v}."},
     {"Do not look for {n} at home on {v}, for it is market day.",
      "Every {v} {n} carries two bags to the square.", "{n} sleeps badly before {v}, the market day."},
     {"On which day does {n} go to market?", "When is the market day of {n}?"},
     {"{n} goes to market on {v}.", "On {v}."},
     ""},
};

const std::array<std::string_view, 24> kFillers = {
    "The morning was cold and the road was wet.",
    "A light wind came from the hills.",
    "Nobody spoke for a while.",
    "The old bridge was being repaired again.",
    "It had rained all night.",
    "Two children ran across the square.",
    "The sun stood low over the fields.",
    "Somebody had left the gate open.",
    "The bells rang at noon.",
    "There was a smell of fresh hay.",
    "The river was high this spring.",
    "A cart went slowly up the hill.",
    "Most of the shops were closed.",
    "The train came late, as it often does.",
    "Snow lay on the roofs.",
    "An old man sat by the fire and listened.",
    "People talked about the weather and the price of corn.",
    "The windows were open because the day was warm.",
    "At the corner they stopped and looked back.",
    "The water in the well was clear.",
    "Leaves fell from the tall trees.",
    "The lamps were lit one after another.",
    "They all sat down at the long table.",
    "The story is well known in the valley.",
};
const std::array<std::string_view, 8> kOpenings = {
    "This is a story about {a} and {b}.",
    "Here is what is known about {a}, {b} and their friends.",
    "Many people have asked about {a} and {b}.",
    "Let me tell you about {a} and {b}.",
    "A few notes on {a} and {b} follow.",
    "When I came to the valley I first met {a} and then {b}.",
    "The names of {a} and {b} come up again and again.",
    "In those days {a} and {b} were seen together.",
};
const std::array<std::string_view, 6> kReviews = {
    "Let us see what we remember.", "Now a few questions.",           "Who can still answer this?",
    "Here is what was asked.",      "Think of what was said before.", "It is time to ask again.",
};

/// Counter-based: the n-th draw of a document is a hash of (seed, index, n).
class Draws {
 public:
  Draws(uint64_t seed, int64_t index) : key_(mix64(mix64(seed) ^ static_cast<uint64_t>(index))) {}
  /// Uniform in [0, n) up to a bias of n / 2^32.
  size_t below(size_t n) { return static_cast<size_t>((mix64(key_ + ++counter_) >> 32) * n >> 32); }
  bool chance(size_t percent) { return below(100) < percent; }
  template <typename List>
  std::string_view pick(const List& list) {
    return list[below(list.size())];
  }

 private:
  uint64_t key_;
  uint64_t counter_ = 0;
};

struct Fact {
  size_t person = 0;
  const FactKind* kind = nullptr;
  std::string_view value;
  std::string_view before;  // the value it replaced
  std::string_view object;  // {x}
};

std::string fill(std::string_view text, const Fact& fact, std::string_view name) {
  std::string filled;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '{') {
      filled += text[i];
      continue;
    }
    switch (text[i + 1]) {
      case 'n':
        filled += name;
        break;
      case 'v':
        filled += fact.value;
        break;
      case 'o':
        filled += fact.before;
        break;
      default:
        filled += fact.object;
    }
    i += 2;
  }
  return filled;
}

class DocumentMaker {
 public:
  DocumentMaker(uint64_t seed, int64_t index) : draws_(seed, index) {}

  std::string make() {
    // Three lengths of document: most are short enough for a small window, some need memory over thousands of
    // tokens.
    const size_t words = draws_.chance(60) ? 100 + draws_.below(300) : 400 + draws_.below(1500);
    const size_t people = 2 + draws_.below(words < 400 ? 3 : 6);
    while (people_.size() < people) add_person();
    open();
    while (num_words_ < words) scene();
    return text_;
  }

 private:
  void add_person() {
    const std::string_view name = draws_.pick(kNames);
    for (const std::string_view known : people_)
      if (known == name) return;
    people_.push_back(name);
  }

  void say(std::string_view sentence) {
    if (!text_.empty() && text_.back() != '\n') text_ += ' ';
    text_ += sentence;
    num_words_ += 1;
    for (const char character : sentence) num_words_ += character == ' ' ? 1 : 0;
  }
  void paragraph() { text_ += "\n"; }

  std::string_view name(const Fact& fact) const { return people_[fact.person]; }

  void open() {
    std::string sentence;
    const std::string_view opening = draws_.pick(kOpenings);
    for (size_t i = 0; i < opening.size(); ++i) {
      if (opening[i] != '{') {
        sentence += opening[i];
        continue;
      }
      sentence += opening[i + 1] == 'a' ? people_[0] : people_[1];
      i += 2;
    }
    say(sentence);
  }

  /// States a fact that the document does not hold yet; false when every person has every kind.
  bool state_new() {
    for (int attempt = 0; attempt < 8; ++attempt) {
      Fact fact;
      fact.person = draws_.below(people_.size());
      fact.kind = &kFactKinds[draws_.below(kFactKinds.size())];
      bool known = false;
      for (const Fact& other : facts_)
        known = known || (other.person == fact.person && other.kind == fact.kind);
      if (known) continue;
      fact.value = draws_.pick(*fact.kind->values);
      fact.object = draws_.pick(kObjects);
      say(fill(draws_.pick(fact.kind->statements), fact, name(fact)));
      facts_.push_back(fact);
      return true;
    }
    return false;
  }

  void change(Fact* fact) {
    if (fact->kind->change.empty()) return;
    const std::string_view value = draws_.pick(*fact->kind->values);
    if (value == fact->value) return;
    fact->before = fact->value;
    fact->value = value;
    say(fill(fact->kind->change, *fact, name(*fact)));
  }

  void ask(const Fact& fact) {
    say(fill(draws_.pick(fact.kind->questions), fact, name(fact)));
    say(fill(draws_.pick(fact.kind->answers), fact, name(fact)));
  }

  /// A few facts, something else, and what is left in memory: of this scene, and of any before it.
  void scene() {
    const size_t first = facts_.size();
    const size_t wanted = 2 + draws_.below(3);
    for (size_t i = 0; i < wanted; ++i) {
      state_new();
      if (draws_.chance(30)) say(draws_.pick(kFillers));
    }
    if (facts_.empty()) return;
    if (draws_.chance(35)) change(&facts_[draws_.below(facts_.size())]);
    paragraph();
    say(draws_.pick(kFillers));
    for (size_t i = first; i < facts_.size(); ++i)
      if (draws_.chance(60)) say(fill(draws_.pick(facts_[i].kind->reminders), facts_[i], name(facts_[i])));
    if (draws_.chance(50)) say(draws_.pick(kFillers));
    paragraph();
    say(draws_.pick(kReviews));
    const size_t questions = 2 + draws_.below(4);
    for (size_t i = 0; i < questions; ++i) {
      const size_t recent = facts_.size() - first;
      const bool old = recent == 0 || draws_.chance(40);
      ask(facts_[old ? draws_.below(facts_.size()) : first + draws_.below(recent)]);
    }
    paragraph();
  }

  Draws draws_;
  std::vector<std::string_view> people_;
  std::vector<Fact> facts_;
  std::string text_;
  size_t num_words_ = 0;
};

}  // namespace builtin_corpus_detail

std::string builtin_document(uint64_t seed, int64_t index) {
  return builtin_corpus_detail::DocumentMaker(seed, index).make();
}

}  // namespace osdn::data
