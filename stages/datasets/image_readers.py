"""Data sets of images in binary files: MNIST, CIFAR-10 and CIFAR-100, STL-10.

MNIST has four idx files (LeCun, Cortes, Burges 1998; format: http://yann.lecun.com/exdb/mnist/).  CIFAR is in its
binary version (Krizhevsky 2009; format: https://www.cs.toronto.edu/~kriz/cifar.html), and so is STL-10 (Coates, Lee, Ng
2011; format: https://cs.stanford.edu/~acoates/stl10/), whose unlabelled pictures are not used.

Parts of ImageNet: Imagenette, Imagewoof (Howard 2019, fast.ai), Tiny ImageNet (Li, Karpathy, Johnson 2015, CS231n).

Imagenette has ten easily told classes, Imagewoof ten breeds of dogs; both in the 160 px version.  A picture is packed
as 80 x 80 pixels: its shorter side resized to 80, the middle kept, for training and test alike; a random crop then
comes from padding, as for CIFAR.  The DAC paper says no more than "160 px version" and "80 x 80".

Tiny ImageNet has 200 classes at 64 x 64 pixels, here also resized to 32 x 32 (bilinear), the HyperBF paper's stated
input.  The test set is the 10,000 labelled validation pictures; the labels of the official test pictures are not
published.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from stages.datasets.archive import read_pictures, walk
from stages.datasets.manifest import ImageReader
from stages.datasets.packed import ImageSet, Split
from stages.datasets.verified import DatasetError

Files = Mapping[Split, tuple[str, ...]]
_CIFAR_SHAPE, _STL10_SHAPE = (3, 32, 32), (3, 96, 96)
IMAGES_MAGIC, LABELS_MAGIC = 0x00000803, 0x00000801  # third byte: unsigned bytes; fourth: number of dimensions
_MNIST_FILES: Files = {
    "train": ("MNIST/raw/train-images-idx3-ubyte.gz", "MNIST/raw/train-labels-idx1-ubyte.gz"),
    "test": ("MNIST/raw/t10k-images-idx3-ubyte.gz", "MNIST/raw/t10k-labels-idx1-ubyte.gz"),
}
_STL10_FILES: Files = {
    "train": ("stl10_binary/train_X.bin", "stl10_binary/train_y.bin"),
    "test": ("stl10_binary/test_X.bin", "stl10_binary/test_y.bin"),
}
_CIFAR100_CLASSES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""


def _read_mnist(folder: Path, split: Split) -> ImageSet:
    """The official images of a split, in order: [N, 1, 28, 28]."""
    images_name, labels_name = _MNIST_FILES[split]
    images = read_idx(folder / images_name, IMAGES_MAGIC)
    labels = read_idx(folder / labels_name, LABELS_MAGIC)
    return ImageSet(images=images[:, None], labels=labels.astype(np.int64))


def read_idx(path: Path, magic: int) -> np.ndarray:
    """A gzipped idx file of unsigned bytes: big-endian magic number, one length per dimension, then the values."""
    try:
        content = gzip.decompress(path.read_bytes())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DatasetError(f"{path}: not a whole gzip file ({error})") from None
    found = int.from_bytes(content[:4], "big")
    if found != magic:
        raise DatasetError(f"{path}: its magic number is {found:#010x}, expected {magic:#010x}")
    dimensions = magic & 0xFF
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise DatasetError(f"{path}: ends within its header, after {len(content)} of {start} bytes")
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4)]
    values = np.frombuffer(content, dtype=np.uint8, offset=start)
    if values.size != np.prod(shape, dtype=np.int64):
        raise DatasetError(f"{path}: {values.size:,} values; its header says {' x '.join(map(str, shape))}")
    return values.reshape(shape)


def _cifar(classes: tuple[str, ...], files: Files, *, label_bytes: int) -> ImageReader:
    """A row is the class, in CIFAR-100 after one of 20 coarse classes that are not used, then the pixels."""

    def read_split(folder: Path, split: Split) -> ImageSet:
        """The official images of a split, in order: [N, 3, 32, 32]."""
        parts = [read_rows(folder / name, label_bytes=label_bytes) for name in files[split]]
        return ImageSet(
            images=np.concatenate([images for _, images in parts]),
            labels=np.concatenate([heads[:, -1] for heads, _ in parts]).astype(np.int64),
        )

    return ImageReader(classes=classes, files=files, read_split=read_split)


def read_rows(path: Path, *, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Label bytes [N, label_bytes] and images [N, 3, 32, 32] (red, green, blue planes) of a binary CIFAR file."""
    content = np.fromfile(path, dtype=np.uint8)
    row_bytes = label_bytes + int(np.prod(_CIFAR_SHAPE))
    if content.size == 0 or content.size % row_bytes:
        raise DatasetError(f"{path}: {content.size:,} bytes are not a whole number of rows of {row_bytes:,} bytes")
    rows = content.reshape(-1, row_bytes)
    return rows[:, :label_bytes], rows[:, label_bytes:].reshape(-1, *_CIFAR_SHAPE)


def _read_stl10(folder: Path, split: Split) -> ImageSet:
    """The official labelled pictures of a split, in order: [N, 3, 96, 96]."""
    images_name, labels_name = _STL10_FILES[split]
    pixels = np.fromfile(folder / images_name, dtype=np.uint8)
    if pixels.size == 0 or pixels.size % np.prod(_STL10_SHAPE):
        raise DatasetError(
            f"{folder / images_name}: {pixels.size:,} bytes are not a whole number of pictures of "
            f"{np.prod(_STL10_SHAPE):,} bytes"
        )
    # A colour plane is stored column by column.
    images = pixels.reshape(-1, *_STL10_SHAPE).transpose(0, 1, 3, 2)
    # The publisher counts classes from 1.
    labels = np.fromfile(folder / labels_name, dtype=np.uint8).astype(np.int64) - 1
    return ImageSet(images=images, labels=labels)


MNIST = ImageReader(classes=tuple("0123456789"), files=_MNIST_FILES, read_split=_read_mnist)
CIFAR10 = _cifar(
    ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    {
        "train": tuple(f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, 6)),
        "test": ("cifar-10-batches-bin/test_batch.bin",),
    },
    label_bytes=1,
)
CIFAR100 = _cifar(
    tuple(_CIFAR100_CLASSES.split()),
    {"train": ("cifar-100-binary/train.bin",), "test": ("cifar-100-binary/test.bin",)},
    label_bytes=2,
)
STL10 = ImageReader(
    classes=("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck"),
    files=_STL10_FILES,
    read_split=_read_stl10,
)


FOLDERS: dict[Split, str] = {"train": "train", "test": "val"}
# The number is the size of the version; a mirror's part may come from another one.
_PICTURE = re.compile(r"image(?:nette|woof)2(?:-\d+)?/(train|val)/(n\d{8})/[\w-]+\.JPEG")

# WordNet id and first word of each class, as the official wnids.txt and words.txt have them, by id.
_TINY_CLASSES = """
n01443537:goldfish n01629819:European_fire_salamander n01641577:bullfrog n01644900:tailed_frog
n01698640:American_alligator n01742172:boa_constrictor n01768244:trilobite n01770393:scorpion n01774384:black_widow
n01774750:tarantula n01784675:centipede n01855672:goose n01882714:koala n01910747:jellyfish n01917289:brain_coral
n01944390:snail n01945685:slug n01950731:sea_slug n01983481:American_lobster n01984695:spiny_lobster
n02002724:black_stork n02056570:king_penguin n02058221:albatross n02074367:dugong n02085620:Chihuahua
n02094433:Yorkshire_terrier n02099601:golden_retriever n02099712:Labrador_retriever n02106662:German_shepherd
n02113799:standard_poodle n02123045:tabby n02123394:Persian_cat n02124075:Egyptian_cat n02125311:cougar n02129165:lion
n02132136:brown_bear n02165456:ladybug n02190166:fly n02206856:bee n02226429:grasshopper n02231487:walking_stick
n02233338:cockroach n02236044:mantis n02268443:dragonfly n02279972:monarch n02281406:sulphur_butterfly
n02321529:sea_cucumber n02364673:guinea_pig n02395406:hog n02403003:ox n02410509:bison n02415577:bighorn
n02423022:gazelle n02437312:Arabian_camel n02480495:orangutan n02481823:chimpanzee n02486410:baboon
n02504458:African_elephant n02509815:lesser_panda n02666196:abacus n02669723:academic_gown n02699494:altar
n02730930:apron n02769748:backpack n02788148:bannister n02791270:barbershop n02793495:barn n02795169:barrel
n02802426:basketball n02808440:bathtub n02814533:beach_wagon n02814860:beacon n02815834:beaker n02823428:beer_bottle
n02837789:bikini n02841315:binoculars n02843684:birdhouse n02883205:bow_tie n02892201:brass n02906734:broom
n02909870:bucket n02917067:bullet_train n02927161:butcher_shop n02948072:candle n02950826:cannon n02963159:cardigan
n02977058:cash_machine n02988304:CD_player n02999410:chain n03014705:chest n03026506:Christmas_stocking
n03042490:cliff_dwelling n03085013:computer_keyboard n03089624:confectionery n03100240:convertible n03126707:crane
n03160309:dam n03179701:desk n03201208:dining_table n03250847:drumstick n03255030:dumbbell n03355925:flagpole
n03388043:fountain n03393912:freight_car n03400231:frying_pan n03404251:fur_coat n03424325:gasmask n03444034:go-kart
n03447447:gondola n03544143:hourglass n03584254:iPod n03599486:jinrikisha n03617480:kimono n03637318:lampshade
n03649909:lawn_mower n03662601:lifeboat n03670208:limousine n03706229:magnetic_compass n03733131:maypole
n03763968:military_uniform n03770439:miniskirt n03796401:moving_van n03804744:nail n03814639:neck_brace
n03837869:obelisk n03838899:oboe n03854065:organ n03891332:parking_meter n03902125:pay-phone n03930313:picket_fence
n03937543:pill_bottle n03970156:plunger n03976657:pole n03977966:police_van n03980874:poncho n03983396:pop_bottle
n03992509:potter's_wheel n04008634:projectile n04023962:punching_bag n04067472:reel n04070727:refrigerator
n04074963:remote_control n04099969:rocking_chair n04118538:rugby_ball n04133789:sandal n04146614:school_bus
n04149813:scoreboard n04179913:sewing_machine n04251144:snorkel n04254777:sock n04259630:sombrero
n04265275:space_heater n04275548:spider_web n04285008:sports_car n04311004:steel_arch_bridge n04328186:stopwatch
n04356056:sunglasses n04366367:suspension_bridge n04371430:swimming_trunks n04376876:syringe n04398044:teapot
n04399382:teddy n04417672:thatch n04456115:torch n04465501:tractor n04486054:triumphal_arch n04487081:trolleybus
n04501370:turnstile n04507155:umbrella n04532106:vestment n04532670:viaduct n04540053:volleyball n04560804:water_jug
n04562935:water_tower n04596742:wok n04597913:wooden_spoon n06596364:comic_book n07579787:plate n07583066:guacamole
n07614500:ice_cream n07615774:ice_lolly n07695742:pretzel n07711569:mashed_potato n07715103:cauliflower
n07720875:bell_pepper n07734744:mushroom n07747607:orange n07749582:lemon n07753592:banana n07768694:pomegranate
n07871810:meat_loaf n07873807:pizza n07875152:potpie n07920052:espresso n09193705:alp n09246464:cliff
n09256479:coral_reef n09332890:lakeside n09428293:seashore n12267677:acorn
"""
TINY_WNIDS, _TINY_NAMES = zip(*(entry.split(":") for entry in _TINY_CLASSES.split()), strict=True)
_ROOT = "tiny-imagenet-200"
_CLASS_LIST, _ANNOTATIONS = f"{_ROOT}/wnids.txt", f"{_ROOT}/val/val_annotations.txt"
_TRAIN = re.compile(rf"{_ROOT}/train/(n\d{{8}})/images/\1_\d+\.JPEG")
_UNLABELLED = re.compile(rf"{_ROOT}/test/images/test_\d+\.JPEG")


def _of_ten_classes(archive: str, classes: Mapping[str, str]) -> ImageReader:
    """`classes` by the WordNet ids that name their folders."""

    def read_split(folder: Path, split: Split) -> ImageSet:
        """The official pictures of a split, in the order of the archive: [N, 3, 80, 80]."""
        return read_pictures(folder / archive, labels_by_folder(folder / archive, list(classes), split), 80)

    return ImageReader(
        classes=tuple(classes.values()), files={"train": (archive,), "test": (archive,)}, read_split=read_split
    )


def labels_by_folder(archive: Path, wnids: Sequence[str], split: Split) -> dict[str, int]:
    """Class of every picture of a split by its name in the archive; each folder is a class."""
    labels = {}
    for member in walk(archive):
        path = PurePosixPath(member.name)
        # Files whose names begin with a dot are left in archives by operating systems.
        if path.suffix.lower() not in (".jpeg", ".jpg", ".png") or path.name.startswith("."):
            continue
        match = _PICTURE.fullmatch(member.name)
        if match is None or match[2] not in wnids:
            raise DatasetError(f"{member.where}: a picture that belongs to no class")
        if match[1] == FOLDERS[split]:
            labels[member.name] = wnids.index(match[2])
    return labels


def _tiny(side: int) -> ImageReader:
    archive = "tiny-imagenet-200.zip"

    def read_split(folder: Path, split: Split) -> ImageSet:
        """The official pictures of a split, in the order of the archive: [N, 3, side, side]."""
        return read_pictures(folder / archive, _tiny_labels(folder / archive)[split], side)

    return ImageReader(classes=_TINY_NAMES, files={"train": (archive,), "test": (archive,)}, read_split=read_split)


def _tiny_labels(archive: Path) -> dict[Split, dict[str, int]]:
    """Class of every labelled picture by its name in the archive."""
    pictures, texts = set(), {}
    for member in walk(archive):
        if member.name.endswith(".JPEG"):
            pictures.add(member.name)
        elif member.name in (_CLASS_LIST, _ANNOTATIONS):
            texts[member.name] = member.read().decode(errors="replace")
    if sorted(texts.get(_CLASS_LIST, "").split()) != list(TINY_WNIDS):
        raise DatasetError(f"{archive}, {_CLASS_LIST}: missing, or not the {len(TINY_WNIDS)} classes of Tiny ImageNet")
    matches = {name: _TRAIN.fullmatch(name) for name in pictures}
    train = {name: TINY_WNIDS.index(match[1]) for name, match in matches.items() if match and match[1] in TINY_WNIDS}
    test = _annotated(texts.get(_ANNOTATIONS, ""), archive)
    for name in sorted(pictures - train.keys() - test.keys()):
        if not _UNLABELLED.fullmatch(name):
            raise DatasetError(f"{archive}, {name}: a picture that belongs to no class")
    for name in sorted(test.keys() - pictures):
        raise DatasetError(f"{archive}, {name}: {_ANNOTATIONS} names it, but it isn't there")
    return {"train": train, "test": test}


def _annotated(text: str, archive: Path) -> dict[str, int]:
    """Class of every validation picture; a line is its name, its class, then a box that isn't used here."""
    labels = {}
    for line in text.splitlines():
        picture, wnid, *_ = [*line.split("\t"), ""]
        name = f"{_ROOT}/val/images/{picture}"
        if wnid not in TINY_WNIDS:
            raise DatasetError(f"{archive}, {_ANNOTATIONS}: {line!r} names no class of Tiny ImageNet")
        if name in labels:
            raise DatasetError(f"{archive}, {_ANNOTATIONS}: {picture} comes twice")
        labels[name] = TINY_WNIDS.index(wnid)
    return labels


IMAGENETTE = _of_ten_classes(
    "imagenette2-160.tgz",
    {
        "n01440764": "tench",
        "n02102040": "English springer",
        "n02979186": "cassette player",
        "n03000684": "chain saw",
        "n03028079": "church",
        "n03394916": "French horn",
        "n03417042": "garbage truck",
        "n03425413": "gas pump",
        "n03445777": "golf ball",
        "n03888257": "parachute",
    },
)
IMAGEWOOF = _of_ten_classes(
    "imagewoof2-160.tgz",
    {
        "n02086240": "Shih-Tzu",
        "n02087394": "Rhodesian ridgeback",
        "n02088364": "beagle",
        "n02089973": "English foxhound",
        "n02093754": "Border terrier",
        "n02096294": "Australian terrier",
        "n02099601": "golden retriever",
        "n02105641": "Old English sheepdog",
        "n02111889": "Samoyed",
        "n02115641": "dingo",
    },
)
TINY_IMAGENET, TINY_IMAGENET_32 = _tiny(64), _tiny(32)
